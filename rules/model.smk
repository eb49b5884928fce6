"""Models before reinforcement learning.

results/models/base/model      the base model: downloaded, linked, or the embedded one
results/models/start/model     the base model after the warm start (if warm_start.enabled)
"""


rule prepare_model:
    """Bring the base model: from the hub at a pinned revision, from a local folder, or made on the spot."""
    input:
        data=lambda wildcards: (
            [made_by("download", "data/raw/manifest.json")(wildcards)]
            if RUNS[wildcards.root].config["model"]["source"] == "embedded"
            else []
        ),
    output:
        model=directory("{root}/models/base/model"),
        manifest="{root}/models/base/manifest.json",
    log:
        "{root}/logs/prepare_model.log",
    benchmark:
        "{root}/benchmarks/prepare_model.tsv"
    conda:
        "../envs/train.yaml"
    threads: lookup(dpath="resources/light/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/light/mem_mb", within=config),
        runtime=lookup(dpath="resources/light/runtime", within=config),
    params:
        settings=settings("prepare_model"),
        code=code("prepare_model"),
        data=lambda wildcards, input: [
            f"--data={Path(file).parent}" for file in input.data
        ],
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/prepare_model.py --settings {params.settings:q} {params.data}"
        " --out {params.out} --log {log}"


rule warm_start:
    """Fine-tune the base model on the task's demonstrations, so that it speaks the tool format."""
    input:
        raw=made_by("download", "data/raw/manifest.json"),
        model=made_by("prepare_model", "models/base/manifest.json"),
    output:
        model=directory("{root}/models/start/model"),
        manifest="{root}/models/start/manifest.json",
    log:
        "{root}/logs/warm_start.log",
    benchmark:
        "{root}/benchmarks/warm_start.tsv"
    conda:
        "../envs/train.yaml"
    threads: lookup(dpath="resources/warm_start/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/warm_start/mem_mb", within=config),
        runtime=lookup(dpath="resources/warm_start/runtime", within=config),
        gpu=lookup(dpath="resources/warm_start/gpu", within=config),
    params:
        settings=settings("warm_start"),
        code=code("warm_start"),
        data=subpath(input.raw, parent=True),
        model=made_by("prepare_model", "models/base/model"),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/warm_start.py --settings {params.settings:q} --data {params.data}"
        " --model {params.model} --threads {threads} --gpus {resources.gpu} --out {params.out} --log {log}"
