#!/bin/sh
# Fill DIR as the home of a person with settings of everything that sfad starts or reads, and print the lines that a shell evaluates
# for the environment of such a person: eval "$(tests/nasty_home.sh DIR)". Each setting changes what a program does that obeys it.
#
# The proxy answers nothing, so pip has to have installed before.
set -eu
[ $# = 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)

put() {
    mkdir -p "$(dirname "$dir/$1")"
    cat >"$dir/$1"
}

put .claude/settings.json <<'END'
{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9/claude", "ANTHROPIC_API_KEY": "of-the-person", "HTTPS_PROXY": "http://127.0.0.1:9"},
 "apiKeyHelper": "false", "model": "model-of-the-person", "permissions": {"defaultMode": "plan"},
 "hooks": {"PreToolUse": [{"matcher": "", "hooks": [{"type": "command", "command": "exit 2"}]}]}}
END
put .claude.json <<'END'
{"projects": {}, "mcpServers": {"mine": {"command": "false", "args": []}}}
END
put .claude/projects/-tmp/11111111-1111-4111-8111-111111111111.jsonl <<'END'
{"type":"user","sessionId":"11111111-1111-4111-8111-111111111111","cwd":"/tmp","timestamp":"2099-01-01T00:00:00.000Z","message":{}}
END
put .codex/config.toml <<'END'
model_provider = "mine"
[model_providers.mine]
name = "mine"
base_url = "http://127.0.0.1:9/codex"
env_key = "NOT_SET"
END
put .codex/auth.json <<'END'
{"OPENAI_API_KEY": "of-the-person"}
END
put .gemini/settings.json <<'END'
{"security": {"auth": {"selectedType": "vertex-ai"}}, "proxy": "http://127.0.0.1:9", "model": {"name": "model-of-the-person"}}
END
put .gemini/.env <<'END'
GEMINI_API_KEY=of-the-person
GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9/gemini
END
put .qwen/settings.json <<'END'
{"security": {"auth": {"selectedType": "openai", "baseUrl": "http://127.0.0.1:9/qwen"}}, "proxy": "http://127.0.0.1:9"}
END
put .qwen/.env <<'END'
OPENAI_BASE_URL=http://127.0.0.1:9/qwen
END
put .config/opencode/opencode.json <<'END'
{"provider": {"anthropic": {"options": {"baseURL": "http://127.0.0.1:9/opencode"}}}, "model": "anthropic/model-of-the-person"}
END
put .aider.conf.yml <<'END'
openai-api-base: http://127.0.0.1:9/aider
END
put .copilot/config.json <<'END'
{"model": "model-of-the-person"}
END
put .config/sfad/sfad.toml <<'END'
[limits]
max_time = "1s"
max_turns = 1
[quotas]
trees = 1
spawns_per_hour = 1
[guard]
max_depth = 0
[gateway]
enabled = false
[containment]
mode = "tags"
[[hooks]]
command = "exit 1"
on = ["*"]
END
put .gitconfig <<END
[user]
name = "Person of this home"
email = person@example.com
[commit]
gpgsign = true
template = $dir/does-not-exist
[tag]
gpgsign = true
[gpg]
program = false
[core]
hooksPath = $dir/hooks
autocrlf = true
fsmonitor = false
excludesFile = $dir/ignore
quotePath = false
pager = false
editor = false
[init]
defaultBranch = trunk-of-the-person
templateDir = $dir/template
[diff]
noprefix = true
mnemonicPrefix = true
external = false
[color]
ui = always
[status]
short = true
showUntrackedFiles = no
[pull]
rebase = true
[safe]
bareRepository = explicit
[format]
pretty = oneline
END
put hooks/pre-commit <<'END'
#!/bin/sh
echo "the hook of a person" >&2
exit 1
END
for hook in post-checkout post-commit commit-msg pre-push reference-transaction post-index-change; do
    cp "$dir/hooks/pre-commit" "$dir/hooks/$hook"
done
chmod +x "$dir"/hooks/*
put template/hooks/pre-commit <"$dir/hooks/pre-commit"
chmod +x "$dir/template/hooks/pre-commit"
echo '*' | put ignore
mkdir -p "$dir/xdg/config/git" # the same where XDG_CONFIG_HOME says
cp -r "$dir/.config/." "$dir/xdg/config/"
cp "$dir/.gitconfig" "$dir/xdg/config/git/config"
put .inputrc <<'END'
set editing-mode vi
"a": "b"
END
put .npmrc <<'END'
registry=http://127.0.0.1:9/
ignore-scripts=true
END
for file in .bashrc .bash_profile .profile .zshrc .zshenv .pythonrc .shrc; do
    put "$file" <<'END'
echo "a start-up file of the person"; exit 3
END
done
put .config/fish/config.fish <"$dir/.bashrc"
put .curlrc <<'END'
proxy = http://127.0.0.1:9
fail
END
put .netrc <<'END'
default login person password secret
END
mkdir -p "$dir/tmp" "$dir/xdg/state" "$dir/xdg/data" "$dir/xdg/cache" "$dir/state"

say() {
    printf "export %s='%s'\n" "$1" "$(printf %s "$2" | sed "s/'/'\\\\''/g")"
}

say HOME "$dir"
say TMPDIR "$dir/tmp"
say XDG_CONFIG_HOME "$dir/xdg/config"
say XDG_STATE_HOME "$dir/xdg/state"
say XDG_DATA_HOME "$dir/xdg/data"
say XDG_CACHE_HOME "$dir/xdg/cache"
say XDG_RUNTIME_DIR "$dir/does-not-exist"
say DBUS_SESSION_BUS_ADDRESS "unix:path=$dir/does-not-exist"
say SFAD_SOCKET "$dir/does-not-exist"
say SFAD_STATE_DIR "$dir/state"
say SFAD_CONFIG "$dir/.config/sfad/sfad.toml"
say SFAD_AUTOSTART 1
say SFAD_SERVICE_USER nobody
say SFA_SOCKET "$dir/does-not-exist"
say SFA_RUN_ID a1
say SFA_NAME person
say SFA_DEPTH 7
say SFA_CALL_CHAIN person:person
say SFA_COOKIE "000000000000:a1:00"
say SFA_ATTEMPT 3
say SFA_DEADLINE 1
say SFA_MAX_DEPTH 0
say SFA_MAX_TIME 1
say SFA_DEFAULTS_TIMEOUT 1
say SFA_MODEL model-of-the-person
say ANTHROPIC_BASE_URL http://127.0.0.1:9/anthropic
say ANTHROPIC_API_KEY of-the-person
say ANTHROPIC_AUTH_TOKEN of-the-person
say ANTHROPIC_MODEL model-of-the-person
say ANTHROPIC_CUSTOM_HEADERS "x-person: yes"
say CLAUDE_CODE_USE_BEDROCK 1
say CLAUDE_CONFIG_DIR "$dir/.claude"
say OPENAI_BASE_URL http://127.0.0.1:9/openai
say OPENAI_API_BASE http://127.0.0.1:9/openai
say OPENAI_API_KEY of-the-person
say OPENAI_MODEL model-of-the-person
say CODEX_HOME "$dir/.codex"
say GEMINI_API_KEY of-the-person
say GOOGLE_API_KEY of-the-person
say GOOGLE_GEMINI_BASE_URL http://127.0.0.1:9/gemini
say GOOGLE_GENAI_USE_VERTEXAI true
say GOOGLE_CLOUD_PROJECT of-the-person
say GEMINI_CLI_HOME "$dir"
say GEMINI_CLI_SYSTEM_SETTINGS_PATH "$dir/.gemini/settings.json"
say OPENCODE_CONFIG "$dir/.config/opencode/opencode.json"
say COPILOT_PROVIDER_BASE_URL http://127.0.0.1:9/copilot
say GIT_DIR "$dir/does-not-exist.git"
say GIT_WORK_TREE "$dir"
say GIT_INDEX_FILE "$dir/index"
say GIT_OBJECT_DIRECTORY "$dir/objects"
say GIT_AUTHOR_NAME "Author of this environment"
say GIT_AUTHOR_EMAIL author@example.com
say GIT_AUTHOR_DATE "1234567890 +0000"
say GIT_COMMITTER_DATE "1234567890 +0000"
say GIT_CONFIG_COUNT 2
say GIT_CONFIG_KEY_0 core.bare
say GIT_CONFIG_VALUE_0 true
say GIT_CONFIG_KEY_1 commit.gpgsign
say GIT_CONFIG_VALUE_1 true
say GIT_CONFIG_PARAMETERS "'core.autocrlf=true'"
say GIT_EXTERNAL_DIFF false
say GIT_DIFF_OPTS -u0
say GIT_LITERAL_PATHSPECS 1
say GIT_TRACE 1
say GIT_PAGER false
say GIT_EDITOR false
say GIT_DEFAULT_HASH sha256
for name in HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy; do
    say "$name" http://127.0.0.1:9
done
say NO_PROXY example.com
say SSL_CERT_FILE "$dir/does-not-exist"
say SSL_CERT_DIR "$dir/does-not-exist"
say OTEL_EXPORTER_OTLP_ENDPOINT http://127.0.0.1:9
say OTEL_SDK_DISABLED true
say OTEL_RESOURCE_ATTRIBUTES service.name=person
say NOTIFY_SOCKET "$dir/does-not-exist"
say LISTEN_FDNAMES person
say JOURNAL_STREAM 1:1
say WATCHDOG_USEC 1000
say INVOCATION_ID person
say TZ Pacific/Chatham
say TERM xterm-256color
say NO_COLOR 1
say FORCE_COLOR 1
say COLUMNS 20
say LINES 3
say PAGER false
say LESS F
say EDITOR false
say VISUAL false
say BASH_ENV "$dir/.bashrc"
say ENV "$dir/.shrc"
say CDPATH /
say INPUTRC "$dir/.inputrc"
say POSIXLY_CORRECT 1
say GREP_OPTIONS --color=always
say PYTHONDONTWRITEBYTECODE 1
say PYTHONUNBUFFERED 1
say PYTHONHASHSEED 7
say PYTHONOPTIMIZE 1
say PYTHONWARNINGS default
say PYTHONSTARTUP "$dir/.pythonrc"
say PYTHONBREAKPOINT person.does_not_exist
say NODE_OPTIONS --require=/does-not-exist
say npm_config_registry http://127.0.0.1:9/
say RAY_ADDRESS 127.0.0.1:9
say HYPOTHESIS_STORAGE_DIRECTORY "$dir/hypothesis"
say CI true
