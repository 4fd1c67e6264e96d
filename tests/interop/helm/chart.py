"""chart.py CHART DIR   lints and renders the Helm chart CHART by Helm's library (helm-python-sdk), and checks every
   object that comes out by Kubernetes' own schemas (kubernetes-validate). Prints ok or not ok for each thing; writes
   what pods would run to DIR: NAME-CONTAINER.args, a line each, and the configuration files."""
import copy
import sys

import helm_python as helm
import kubernetes_validate
import yaml

CHART, OUT = sys.argv[1:]
PLAIN = {}
ALL = {
    "image": {"repository": "registry.test/team/heddle/", "tag": "0.2.0", "pullSecrets": [{"name": "registry"}]},
    "controller": {"hosts": ["heddle.test", "10.0.0.7"], "config": {"spare_nodes": 1, "log_format": "json", "node_lost_after": 60},
                   "policy": "role ann operator\nsee role:viewer all\n",
                   "storage": {"size": "20Gi", "storageClass": "fast"},
                   "service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}},
                   "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]},
    "jobs": {"storageClass": "nfs", "size": "3Ti"},
    "data": [{"name": "corpus", "mountPath": "/data", "readOnly": True,
              "volume": {"persistentVolumeClaim": {"claimName": "corpus"}}}],
    "node": {"gpus": 8, "devices": "cuda", "runtimeClassName": "nvidia", "hostNetwork": True,
             "config": {"min_free": 10, "isolation": "try", "memory_slack": "2G"}, "maxUnavailable": "10%",
             "terminationGracePeriodSeconds": 900, "resources": {"limits": {"memory": "512Gi"}}},
    "test": {"viewerSecret": "viewer"},
}
REFUSED = [{"node": {"gpu": 8}}, {"node": {"gpus": "eight"}}, {"node": {"terminationGracePeriodSeconds": 10}},
           {"controller": {"config": {"state_dir": "/elsewhere"}}}, {"jobs": {"size": "lots"}}, {"runAsUser": 0},
           {"data": [{"name": "x", "mountPath": "relative", "readOnly": True, "volume": {"emptyDir": {}}}]}]
VERSIONS = ["1.25", "1.31", "1.35"]


def verdict(name, problems):
    print(f"{'not ok' if problems else 'ok'} {name}" + (f": {problems[:3]}" if problems else ""))


def documents(rendered):
    for path, text in sorted(rendered.items()):
        if path.endswith(".yaml"):
            yield from (document for document in yaml.safe_load_all(text) if document)


def schema_problems(objects):
    problems = []
    for version in VERSIONS:
        for item in objects:
            try:
                kubernetes_validate.validate(item, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                problems.append(f"{version} {item['kind']}: {error.message} at {list(error.path)}")
    return problems


def pods(objects):
    for item in objects:
        if item["kind"] == "Pod":
            yield item["metadata"]["name"], item["spec"]
        elif "template" in item.get("spec", {}):
            yield item["metadata"]["name"], item["spec"]["template"]["spec"]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def security_problems(objects):
    """Kubernetes' restricted standard, but for the folder on the machine and the one step that makes it ours."""
    problems = []
    for name, spec in pods(objects):
        if spec.get("automountServiceAccountToken") is not False:
            problems.append(f"{name} gets a token of the cluster")
        if spec["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"} or not spec["securityContext"]["runAsUser"]:
            problems.append(f"{name}: seccomp or user")
        for container in containers(spec):
            context = container["securityContext"]
            root = container["name"] == "own-state"
            if (context["allowPrivilegeEscalation"] or not context["readOnlyRootFilesystem"] or
                    context["capabilities"] != ({"drop": ["ALL"], "add": ["CHOWN"]} if root else {"drop": ["ALL"]}) or
                    context["runAsNonRoot"] == root):
                problems.append(f"{name}/{container['name']}: {context}")
    return problems


def mount_problems(objects):
    """A mount without a volume, a volume without a mount, and a secret where ranks run."""
    problems = []
    claims = {t["metadata"]["name"] for o in objects if o["kind"] == "StatefulSet" for t in o["spec"]["volumeClaimTemplates"]}
    for name, spec in pods(objects):
        volumes = {v["name"] for v in spec["volumes"]} | (claims if "controller" in name else set())
        mounts = {m["name"] for c in containers(spec) for m in c["volumeMounts"]}
        problems += [f"{name}: {sorted(mounts ^ volumes)}"] if mounts != volumes else []
        secrets = {v["name"] for v in spec["volumes"] if "secret" in v}
        for container in spec["containers"]:
            if name.endswith("-node") and secrets & {m["name"] for m in container["volumeMounts"]}:
                problems.append(f"{name}/{container['name']} sees a secret")
    return problems


def grace_problems(objects):
    """heddled gives up 20 s before the kubelet does."""
    for name, spec in pods(objects):
        for container in spec["containers"]:
            leave = [a for a in container.get("args", []) if a.startswith("--leave-within=")]
            if leave:
                left = spec["terminationGracePeriodSeconds"] - int(leave[0].split("=")[1])
                return [] if left == 20 else [f"{name}: {left} s"]
    return ["no container has --leave-within"]


def write(name, objects):
    for _, spec in pods(objects):
        for container in containers(spec):
            if container.get("command", [""])[0].startswith("/bin/"):
                with open(f"{OUT}/{name}-{container['name']}.sh", "w") as out:
                    out.write(container["args"][0])
            elif "args" in container:
                with open(f"{OUT}/{name}-{container['name']}.args", "w") as out:
                    out.write("\n".join(container["args"]) + "\n")
    for item in objects:
        for file, text in (item.get("data") or {}).items() if item["kind"] == "ConfigMap" else ():
            with open(f"{OUT}/{name}-{file}", "w") as out:
                out.write(text)


found = helm.lint(CHART)
verdict("lint_finds_nothing", [m for m in found["messages"] if m["error"] != "icon is recommended"] + list(found["errors"]))
with helm.Chart.load(CHART) as chart:
    for name, values in (("plain", PLAIN), ("all", ALL)):
        rendered = chart.render(values, name="prod", namespace="ml")
        objects = list(documents(rendered))
        verdict(f"{name}_has_all_kinds", sorted({"ServiceAccount", "ConfigMap", "Service", "StatefulSet", "DaemonSet", "Pod",
                                                 "NetworkPolicy", "PersistentVolumeClaim"} ^ {o["kind"] for o in objects}))
        verdict(f"{name}_fits_kubernetes", schema_problems(objects))
        verdict(f"{name}_is_restricted", security_problems(objects))
        verdict(f"{name}_mounts_what_it_has", mount_problems(objects))
        verdict(f"{name}_ends_before_it_is_killed", grace_problems(objects))
        write(name, objects)
    node = next(spec for name, spec in pods(objects) if name.endswith("-node"))
    limits = node["containers"][0]["resources"]["limits"]
    verdict("gpus_are_asked_for_beside_other_limits",
            [] if limits == {"nvidia.com/gpu": 8, "memory": "512Gi"} else [limits])
    for number, values in enumerate(REFUSED):
        try:
            chart.render(copy.deepcopy(values), name="prod", namespace="ml")
            verdict(f"wrong_values_{number}_are_refused", [values])
        except helm.HelmError:
            verdict(f"wrong_values_{number}_are_refused", [])
