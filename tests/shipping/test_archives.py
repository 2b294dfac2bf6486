"""Packing, unpacking, comparing and bringing back: what is sent, what is refused, and that nothing
leaves the directory."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.features.fleet.files import packing as shipping
from sfad.features.fleet.files.packing import ShippingError, Tree, why_leaves
from tests import surroundings
from tests.tiers import examples

pytestmark = pytest.mark.needs("git")

MOST = 1 << 20
Content = Mapping[str, bytes | str]
"""By path: the bytes of a file, or `-> TARGET`."""


def fill(root: Path, content: Content) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for path, what in content.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, str):
            (root / path).symlink_to(what.removeprefix("-> "))
        else:
            (root / path).write_bytes(what)
    return root


def content_of(root: Path) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if ".git" in path.relative_to(root).parts:
            continue
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def repository(root: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return root


def packed(root: Path) -> io.BytesIO:
    out = io.BytesIO()
    shipping.pack(str(root), shipping.survey(str(root), os.environ).paths, out)
    out.seek(0)
    return out


def unpacked(archive: io.BytesIO, root: Path, most: int = MOST) -> Path:
    root.mkdir(exist_ok=True)
    archive.seek(0)
    shipping.unpack(archive, str(root), most)
    return root


def changes_of(
    archive: io.BytesIO, root: Path, *, git: bool = False, patch: bool = False, most: int = MOST
) -> io.BytesIO:
    archive.seek(0)
    found = shipping.compare(archive, str(root), os.environ, git=git)
    out = io.BytesIO()
    archive.seek(0)
    shipping.pack_changes(archive, str(root), found, out, most, patch=patch)
    return out


# ---- What is sent


def test_git_decides_what_is_sent(tmp_path: Path) -> None:
    root = repository(
        fill(
            tmp_path / "a",
            {
                ".gitignore": b"*.log\n",
                "x.log": b"",
                "tracked.log": b"1",
                "sub/new": b"22",
                "gone": b"",
            },
        )
    )
    subprocess.run(["git", "-C", root, "add", "--force", "tracked.log", "gone"], check=True)
    (root / "gone").unlink()
    repository(fill(root / "nested", {"file": b""}))
    found = shipping.survey(str(root), os.environ)
    assert (found.paths, found.size, found.git) == (
        [".gitignore", "sub/new", "tracked.log"],
        6 + 2 + 1,
        True,
    )
    assert found.left_out == ["nested: it is a repository of its own"]
    below = shipping.survey(str(root / "sub"), os.environ)
    assert (below.paths, below.git) == (["new"], True)


def test_without_git_everything_is_sent_but_repositories_and_what_is_no_file(
    tmp_path: Path,
) -> None:
    root = fill(
        tmp_path / "a",
        {"x.log": b"1", "in": "-> sub/y", "out": "-> ../b", "abs": "-> /etc/passwd", "sub/y": b""},
    )
    (root / "empty").mkdir()
    os.mkfifo(root / "fifo")
    repository(root / "sub")
    found = shipping.survey(str(root), os.environ)
    assert (found.paths, found.git) == (["empty", "in", "sub", "sub/y", "x.log"], False)
    assert [each.partition(":")[0] for each in found.left_out] == ["abs", "fifo", "out", "sub/.git"]
    assert (unpacked(packed(root), tmp_path / "b") / "empty").is_dir()


@pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK),
    reason="takes a directory on another file system than its parent",
)
def test_without_git_on_a_file_system_of_its_own_everything_is_sent() -> None:
    with tempfile.TemporaryDirectory(dir=surroundings.in_memory()) as place:
        (Path(place) / "file").touch()
        assert shipping.survey(place, os.environ).paths == ["file"]


def test_where_git_refuses_nothing_is_sent(tmp_path: Path) -> None:
    root = fill(tmp_path / "a", {".git": b"gitdir: /nonexistent\n", "secret": b""})
    with pytest.raises(ShippingError, match="not a git repository"):
        shipping.survey(str(root), os.environ)
    with pytest.raises(ShippingError, match="it is empty"):
        shipping.survey(str(fill(tmp_path / "b", {})), os.environ)
    ignored = fill(repository(tmp_path / "c") / "build", {"x": b""})
    (tmp_path / "c" / ".gitignore").write_text("build\n")
    with pytest.raises(ShippingError, match="no files that git does not ignore"):
        shipping.survey(str(ignored), os.environ)


def test_the_copy_is_a_repository_in_which_one_can_commit(tmp_path: Path) -> None:
    root = repository(fill(tmp_path / "a", {"x": b"1", "run.sh": b""}))
    (root / "run.sh").chmod(0o755)
    os.utime(root / "x", (1e9, 1e9))
    copy = unpacked(packed(root), tmp_path / "b")
    assert (content_of(copy), copy.joinpath("x").stat().st_mtime) == (content_of(root), 1e9)
    assert os.access(copy / "run.sh", os.X_OK)
    assert not os.access(copy / "x", os.X_OK)
    shipping.begin_repository(str(copy), "Ann <ann@example.com>", os.environ)
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    subprocess.run(
        ["git", "-C", copy, "commit", "--quiet", "--allow-empty", "-m", "more"], check=True, env=env
    )
    log = subprocess.run(
        ["git", "-C", copy, "log", "--format=%an %ae %s"],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    assert log.stdout == "Ann ann@example.com more\nAnn ann@example.com shipped\n"


# ---- What an archive may not have


def archive_of(*members: tuple[str, bytes, str | bytes]) -> io.BytesIO:
    """Return an archive of members: name, type, and content or link target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if isinstance(content, str):
                member.linkname = content
                made.addfile(member)
            else:
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
    out.seek(0)
    return out


FILE, LINK, HARD, FIFO, DEVICE, FOLDER = (
    tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE,
    tarfile.DIRTYPE
)  # fmt: skip


@pytest.mark.parametrize(
    "members",
    [
        [("/tmp/evil", FILE, b"x")],
        [("../evil", FILE, b"x")],
        [("a/../../evil", FILE, b"x")],
        [("a/./b", FILE, b"x")],
        [(".git/hooks/post-commit", FILE, b"x")],
        [("sub/.GIT/config", FILE, b"x")],
        [("evil", LINK, "/etc")],
        [("evil", LINK, "..")],
        [("a/evil", LINK, "../../b")],
        [("a/evil", LINK, "b/../..")],
        [("evil", HARD, "x")],
        [("evil", FIFO, "")],
        [("evil", DEVICE, "")],
        [("d", LINK, "other"), ("other", FOLDER, ""), ("d/through", FILE, b"x")],
        [("large", FILE, b"x" * (MOST + 1))],
        [(f"many{number}", FILE, b"x" * (MOST // 8)) for number in range(9)],
    ],
)
def test_unsafe_archives_are_refused(
    tmp_path: Path, members: list[tuple[str, bytes, str | bytes]]
) -> None:
    with pytest.raises((ShippingError, OSError)):
        unpacked(archive_of(*members), tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert not [
        path
        for path in (tmp_path / "a").rglob("*")
        if path.name in ("evil", "through", "large", "post-commit", "config")
    ]


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    whole = packed(fill(tmp_path / "a", {"x": os.urandom(4096)})).getvalue()
    for cut in (
        b"",
        b"no archive",
        whole[: len(whole) // 2],
        whole[:2000] + b"\xff" * 100 + whole[2100:],
    ):
        with pytest.raises(ShippingError, match="damaged"):
            unpacked(io.BytesIO(cut), tmp_path / "b")


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = st.lists(st.sampled_from(["a", "b", "c", ".."]), min_size=1, max_size=5).map("/".join)


@given(st.dictionaries(PATHS, TARGETS, max_size=6))
def test_no_links_that_are_let_through_lead_out_together(links: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place).resolve() / "root"
        root.mkdir()
        with Tree(str(root)) as tree:
            made = []
            for path, target in links.items():
                if why_leaves(path, target) is None:
                    try:
                        tree.link(path, target)
                    except OSError:  # a link or a directory is in its way
                        continue
                    made.append(path)
        for path in made:
            assert Path(os.path.realpath(root / path)).is_relative_to(root)


# ---- Changes

WHATS = st.binary(max_size=3) | st.sampled_from(["-> a", "-> b/c", "-> c"])


def possible(tree: Content) -> Content:
    """Leave out what would be in a file."""
    return {
        path: what
        for path, what in tree.items()
        if not any(path.startswith(f"{other}/") for other in tree)
    }


TREES = st.dictionaries(PATHS, WHATS, min_size=1, max_size=6).map(possible)


@given(TREES, TREES)
@settings(max_examples=examples(25), deadline=None)
def test_what_is_brought_back_is_what_there_is_on_the_node(before: Content, after: Content) -> None:
    with tempfile.TemporaryDirectory() as place:
        at = Path(place)
        sent = packed(fill(at / "here", before))
        unpacked(sent, at / "there")
        assert content_of(at / "there") == content_of(at / "here")
        shutil.rmtree(at / "there")
        found = changes_of(sent, fill(at / "there", after))
        listed = shipping.read_changes(found)
        with Tree(str(at / "here")) as tree:
            assert shipping.conflicts(listed, tree) == []
            shipping.apply(found, listed, tree)
            assert shipping.conflicts(listed, tree) == []
            assert shipping.apply(found, listed, tree) == []
        assert content_of(at / "here") == content_of(at / "there")


BEFORE: Content = {"kept": b"1\n", "changed": b"2\n", "gone/deep": b"3\n", "link": "-> kept"}


def work(root: Path) -> None:
    (root / "changed").write_text("22\n")
    shutil.rmtree(root / "gone")
    fill(root, {"new/deep": b"4\n", "ignored.log": b"", ".gitignore": b"*.log\n"})


@pytest.fixture
def sent(tmp_path: Path) -> io.BytesIO:
    """The archive of `here`, which was unpacked `there`, where a run has worked."""
    archive = packed(repository(fill(tmp_path / "here", BEFORE)))
    work(unpacked(archive, tmp_path / "there"))
    return archive


def test_what_git_ignores_on_the_node_stays_there(tmp_path: Path, sent: io.BytesIO) -> None:
    repository(fill(tmp_path / "there" / "cloned", {"x": b""}))
    fill(tmp_path / "there", {"out": "-> /etc"})
    marker = tmp_path / "executed"
    repository(tmp_path / "there")
    with (tmp_path / "there" / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {marker}"\n')
    listed = shipping.read_changes(changes_of(sent, tmp_path / "there", git=True))
    assert [(each.kind, each.path) for each in listed.changes] == [
        ("added", ".gitignore"), ("changed", "changed"), ("deleted", "gone/deep"),
        ("added", "new/deep"),
    ]  # fmt: skip
    assert [each.partition(":")[0] for each in listed.left_out] == ["cloned", "out"]
    assert not marker.exists()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda root: (root / "changed").write_text("mine\n"), ["changed"]),
        (lambda root: (root / "changed").unlink(), ["changed"]),
        (lambda root: (root / "gone/deep").write_text("mine\n"), ["gone/deep"]),
        (lambda root: fill(root, {"new/deep": b"mine\n"}), ["new/deep"]),
        (lambda root: (root / "new").symlink_to("/tmp"), ["new/deep"]),
        (lambda root: (root / "kept").write_text("mine\n"), []),
    ],
)
def test_files_that_have_changed_since_are_named(
    tmp_path: Path, sent: io.BytesIO, spoil: Callable[[Path], object], named: list[str]
) -> None:
    spoil(tmp_path / "here")
    listed = shipping.read_changes(changes_of(sent, tmp_path / "there", git=True))
    with Tree(str(tmp_path / "here")) as tree:
        assert shipping.conflicts(listed, tree) == named


def test_elsewhere_files_may_be_missing(tmp_path: Path, sent: io.BytesIO) -> None:
    found = changes_of(sent, tmp_path / "there", git=True)
    listed = shipping.read_changes(found)
    with Tree(str(fill(tmp_path / "other", {}))) as tree:
        assert shipping.conflicts(listed, tree) == ["changed"]
        assert shipping.conflicts(listed, tree, may_miss=True) == []
        shipping.apply(found, listed, tree)
    assert content_of(tmp_path / "other") == {
        ".gitignore": b"*.log\n",
        "changed": b"22\n",
        "new/deep": b"4\n",
    }


def test_through_a_link_nothing_is_written_even_by_force(tmp_path: Path, sent: io.BytesIO) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "here" / "new").symlink_to(tmp_path / "outside")
    found = changes_of(sent, tmp_path / "there", git=True)
    with Tree(str(tmp_path / "here")) as tree, pytest.raises(ShippingError, match="in the way"):
        shipping.apply(found, shipping.read_changes(found), tree)
    assert list((tmp_path / "outside").iterdir()) == []


def test_an_empty_directory_may_become_a_file(tmp_path: Path) -> None:
    before = tmp_path / "before"
    (before / "d" / "below").mkdir(parents=True)
    node = unpacked(packed(before), tmp_path / "node")
    shutil.rmtree(node / "d")
    (node / "d").write_text("x")
    changes = changes_of(packed(before), node)
    with Tree(str(before)) as tree:
        found = shipping.read_changes(changes)
        assert shipping.conflicts(found, tree) == []
        shipping.apply(changes, found, tree)
    assert content_of(before) == content_of(node)


@pytest.mark.parametrize("obstacle", ["z/file", "z"])
def test_by_force_all_is_written_or_nothing(tmp_path: Path, obstacle: str) -> None:
    before = fill(tmp_path / "before", {"a": b"1"})
    node = unpacked(packed(before), tmp_path / "node")
    fill(node, {"a": b"2", ("z" if obstacle == "z/file" else "z/file"): b"3"})
    changes = changes_of(packed(before), node)
    fill(before, {obstacle: b"mine"})
    kept = content_of(before)
    with Tree(str(before)) as tree, pytest.raises(ShippingError, match="in the way"):
        shipping.apply(changes, shipping.read_changes(changes), tree)
    assert content_of(before) == kept


def test_the_rights_of_a_file_stay(tmp_path: Path, sent: io.BytesIO) -> None:
    (tmp_path / "here" / "changed").chmod(0o600)
    found = changes_of(sent, tmp_path / "there", git=True)
    with Tree(str(tmp_path / "here")) as tree:
        shipping.apply(found, shipping.read_changes(found), tree)
    assert (tmp_path / "here" / "changed").stat().st_mode & 0o777 == 0o600


def test_a_patch_does_the_same(tmp_path: Path, sent: io.BytesIO) -> None:
    (tmp_path / "there" / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "there" / "link").unlink()
    patch = shipping.patch(changes_of(sent, tmp_path / "there", git=True, patch=True), os.environ)
    subprocess.run(
        ["git", "-C", tmp_path / "here", "apply", "--whitespace=nowarn"], input=patch, check=True
    )
    expected = content_of(tmp_path / "there")
    del expected["ignored.log"]
    assert content_of(tmp_path / "here") == expected


def test_changes_are_bounded(tmp_path: Path, sent: io.BytesIO) -> None:
    (tmp_path / "there" / "large").write_bytes(bytes(5000))
    with pytest.raises(
        ShippingError,
        match=r"the changes have 50\d\d bytes, and fleet.ship_max of the node is 4000",
    ):
        changes_of(sent, tmp_path / "there", git=True, most=4000)


@pytest.mark.parametrize("path", ["../evil", ".git/config", "/evil"])
def test_a_list_of_changes_is_not_trusted(tmp_path: Path, path: str) -> None:
    listed = shipping.Changes([shipping.Change(path, None, "file 0")], [])
    archive = archive_of(
        (shipping.MANIFEST, FILE, listed.encoded()), (shipping.NEW + path, FILE, b"x")
    )
    root = fill(tmp_path / "a", {})
    with Tree(str(root)) as tree, pytest.raises(ShippingError, match="archive of changes"):
        shipping.apply(archive, shipping.read_changes(archive), tree)
    for content in (b"", b"[]", b'{"changes": [1], "left_out": []}'):
        with pytest.raises(ShippingError, match="damaged"):
            shipping.read_changes(archive_of((shipping.MANIFEST, FILE, content)))
