"""Renders the Helm chart with helm, and checks the result against the schemas of Kubernetes and of the operators."""

import json
import pathlib
import shutil
import sys
import zipfile

import yaml
from harness import CACHE, ROOT, go_tool, run, say, scratch, validators

CHART = ROOT / "dist/helm/codeq"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
KUBERNETES = "1.29.0"
# Where Go's module proxy has the operators' schemas: module, version, file.
OPERATORS = [
    ("github.com/kedacore/keda/v2", "v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    *[("github.com/prometheus-operator/prometheus-operator", "v0.85.0",
       f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml") for kind in ("servicemonitors", "prometheusrules")],
]


def operator_schemas():
    """The schemas of ServiceMonitor, PrometheusRule and ScaledObject, by kind."""
    schemas = {}
    for module, version, path in OPERATORS:
        cached = CACHE / "crds" / f"{version}-{pathlib.Path(path).name}"
        if not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            archive = cached.with_suffix(".zip")
            run("curl", "-sSf", "-o", archive, f"https://proxy.golang.org/{module}/@v/{version}.zip")
            cached.write_bytes(zipfile.ZipFile(archive).read(f"{module}@{version}/{path}"))
            archive.unlink()
        crd = yaml.safe_load(cached.read_text())
        (stored,) = [entry for entry in crd["spec"]["versions"] if entry["storage"]]
        schemas[crd["spec"]["names"]["kind"]] = strict(stored["schema"]["openAPIV3Schema"])
    return schemas


def strict(schema):
    """Refuses unknown fields, which the API server would drop without a word."""
    if isinstance(schema, dict):
        schema = {key: strict(value) for key, value in schema.items()}
        if isinstance(schema.get("pattern"), str):
            # Go allows flags after the start of an expression, Python does not.
            schema["pattern"] = schema["pattern"].replace("^(?i)", "(?i)^")
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        return schema
    return [strict(entry) for entry in schema] if isinstance(schema, list) else schema


def render(program, values, *more):
    return run(program, "template", "queue", CHART, "--namespace", "work", "--kube-version", KUBERNETES, *more,
               *(["--values", CHART / "ci" / values] if values else []), check=False)


def check_schemas(python, resources, schemas, work):
    """One process for all: kinds of Kubernetes by its schemas, the operators' by theirs."""
    # What every object has; an operator's schema leaves metadata open.
    for schema in schemas.values():
        schema["properties"]["metadata"] = {"type": "object"}
    (work / "input.json").write_text(json.dumps({"resources": resources, "schemas": schemas, "version": "1.29"}))
    program = """
import json, sys, jsonschema, kubernetes_validate
given = json.load(open(sys.argv[1]))
for resource in given["resources"]:
    schema = given["schemas"].get(resource["kind"])
    if schema:
        jsonschema.validate(resource, schema)
    else:
        kubernetes_validate.validate(resource, given["version"], strict=True)
"""
    run(python, "-c", program, work / "input.json")


def check_meaning(resources):
    """What schemas cannot know: names and labels that refer to each other, and the rules for the Pod."""
    by_kind = {}
    for resource in resources:
        by_kind.setdefault(resource["kind"], []).append(resource)
    (stateful,) = by_kind["StatefulSet"]
    pod = stateful["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    services = {service["metadata"]["name"]: service for service in by_kind["Service"]}
    assert stateful["spec"]["serviceName"] in services
    ports = {port["name"] for port in container["ports"]}
    for service in services.values():
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert pod["spec"]["enableServiceLinks"] is False and pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    for monitor in by_kind.get("ServiceMonitor", []):
        chosen = [service for service in services.values()
                  if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()]
        assert len(chosen) == 1 and chosen[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "codeq"
    for secret in by_kind.get("Secret", []):
        (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "config"]
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    routes = (ROOT / "crates/codeq-server/src/http/routes.rs").read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert f'"{container[probe]["httpGet"]["path"]}"' in routes, f"{probe} asks for a route that does not exist"
    return stateful, by_kind


def check_settings(binary, stateful, by_kind, work):
    """The server accepts the configuration file and the environment that the chart gives it."""
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    file = work / "codeq.yaml"
    file.touch(0o600)
    file.write_text(by_kind["Secret"][0]["stringData"]["codeq.yaml"])
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    run(binary, "config", "check", "--config", file, env=values)


def main(binary):
    program, python, schemas = go_tool("helm", HELM), validators() / "python", operator_schemas()
    refused = render(program, None)
    assert refused.returncode and "needs tokens" in refused.stdout, refused.stdout
    with scratch() as work:
        for values in ("full.yaml", "secret.yaml"):
            run(program, "lint", "--strict", CHART, "--values", CHART / "ci" / values)
            rendered = render(program, values)
            assert rendered.returncode == 0, rendered.stdout
            resources = [resource for resource in yaml.safe_load_all(rendered.stdout) if resource]
            check_schemas(python, resources, schemas, work)
            stateful, by_kind = check_meaning(resources)
            if "Secret" in by_kind:
                check_settings(binary, stateful, by_kind, work)
            if "PrometheusRule" in by_kind and shutil.which("promtool"):
                (rule,) = by_kind["PrometheusRule"]
                (work / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
                run("promtool", "check", "rules", work / "rules.yml")
            say(f"{values}: {len(resources)} valid objects: {', '.join(sorted(by_kind))}")
        say("without tokens the chart refuses to render")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
