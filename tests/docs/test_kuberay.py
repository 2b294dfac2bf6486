"""The manifest for KubeRay, against what the resource definition RayCluster of ray.io/v1 allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

MANIFEST = Path(__file__).parents[2] / "docs" / "kuberay.yaml"

TEXT, BOOLEAN, WHOLE, ANY = (
    {"type": "string"},
    {"type": "boolean"},
    {"type": "integer"},
    {"type": "object"},
)
TEXTS, MAP = {"type": "array", "items": TEXT}, {"type": "object", "additionalProperties": TEXT}
AMOUNTS = {
    "type": "object",
    "additionalProperties": {
        "type": ["string", "integer"],
        "pattern": r"^[0-9.]+([KMGTPE]i|[mkMGTPE])?$",
    },
}


def fields(*required: str, **known: Any) -> dict[str, Any]:
    """Return the schema of an object with no other fields."""
    return {
        "type": "object",
        "properties": known,
        "required": list(required),
        "additionalProperties": False,
    }


def items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


HANDLER = fields(exec=fields(command=TEXTS), httpGet=ANY, sleep=ANY, tcpSocket=ANY)
CONTAINER = fields(
    "name",
    args=TEXTS,
    command=TEXTS,
    env=items(fields("name", name=TEXT, value=TEXT, valueFrom=ANY)),
    envFrom=items(ANY),
    image=TEXT,
    imagePullPolicy=TEXT,
    lifecycle=fields(postStart=HANDLER, preStop=HANDLER, stopSignal=TEXT),
    livenessProbe=ANY,
    name=TEXT,
    ports=items(ANY),
    readinessProbe=ANY,
    resources=fields(claims=items(ANY), limits=AMOUNTS, requests=AMOUNTS),
    securityContext=fields(
        allowPrivilegeEscalation=BOOLEAN, privileged=BOOLEAN, readOnlyRootFilesystem=BOOLEAN,
        runAsGroup=WHOLE, runAsNonRoot=BOOLEAN, runAsUser=WHOLE, capabilities=ANY,
        seccompProfile=ANY,
    ),
    startupProbe=ANY,
    volumeMounts=items(fields("name", "mountPath", mountPath=TEXT, name=TEXT, readOnly=BOOLEAN,
                              subPath=TEXT)),
    workingDir=TEXT,
)  # fmt: skip
VOLUME = fields(
    "name",
    name=TEXT,
    configMap=fields(name=TEXT, items=items(ANY), optional=BOOLEAN, defaultMode=WHOLE),
    emptyDir=fields(medium=TEXT, sizeLimit=TEXT),
    hostPath=fields("path", path=TEXT, type=TEXT),
    persistentVolumeClaim=fields("claimName", claimName=TEXT, readOnly=BOOLEAN),
    secret=fields(secretName=TEXT, items=items(ANY), optional=BOOLEAN, defaultMode=WHOLE),
)
POD = fields(
    metadata=fields(annotations=MAP, labels=MAP, name=TEXT, namespace=TEXT),
    spec=fields(
        "containers", containers=items(CONTAINER), initContainers=items(CONTAINER),
        volumes=items(VOLUME), hostPID=BOOLEAN, nodeSelector=MAP, securityContext=ANY,
        serviceAccountName=TEXT, shareProcessNamespace=BOOLEAN, terminationGracePeriodSeconds=WHOLE,
        tolerations=items(ANY),
    ),
)  # fmt: skip
HEAD = fields(
    "template",
    headService=ANY,
    labels=MAP,
    rayStartParams=MAP,
    resources=MAP,
    serviceType=TEXT,
    template=POD,
)
WORKERS = fields(
    "groupName", "maxReplicas", "minReplicas", "template", groupName=TEXT, idleTimeoutSeconds=WHOLE,
    labels=MAP, maxReplicas=WHOLE, minReplicas=WHOLE, numOfHosts=WHOLE, rayStartParams=MAP,
    replicas=WHOLE, resources=MAP, template=POD,
)  # fmt: skip
CLUSTER = fields(
    "apiVersion", "kind", "metadata", "spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=fields("name", name=TEXT, namespace=TEXT, labels=MAP, annotations=MAP),
    spec=fields(
        "headGroupSpec",
        authOptions=fields(mode={"enum": ["disabled", "token"]}, secretName=TEXT,
                           enableK8sTokenAuth=BOOLEAN),
        autoscalerOptions=ANY, enableInTreeAutoscaling=BOOLEAN, headGroupSpec=HEAD, rayVersion=TEXT,
        suspend=BOOLEAN, workerGroupSpecs=items(WORKERS),
    ),
)  # fmt: skip
"""Written by hand after the definition of KubeRay 1.6: the fields that a fleet may want. What is
not here is refused, so that a misspelt field is noticed."""


@pytest.fixture
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return found


def groups(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]


def test_it_is_a_ray_cluster(manifest: dict[str, Any]) -> None:
    jsonschema.validate(manifest, CLUSTER)


def test_a_misspelt_field_is_noticed(manifest: dict[str, Any]) -> None:
    groups(manifest)[0]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(jsonschema.ValidationError, match="volumeMount"):
        jsonschema.validate(manifest, CLUSTER)


def test_each_pod_is_a_node(manifest: dict[str, Any]) -> None:
    assert manifest["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    assert manifest["spec"]["authOptions"]["mode"] == "token"
    for group in groups(manifest):
        assert "labels" not in group.get("rayStartParams", {}), "KubeRay refuses them there"
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        (script,) = container["args"]
        assert "sfad serve" in script
        assert "$KUBERAY_GEN_RAY_START_CMD --labels=sfad-node=$HOSTNAME" in script
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }
