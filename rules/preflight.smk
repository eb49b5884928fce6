"""Checks before anything heavy starts.

results/preflight/{train,evaluate}.json     estimates of disk and GPU memory; they exist if all is well
"""


rule preflight:
    """Check on a CPU what would otherwise fail after minutes: versions, template, parser, rows, batches, room."""
    input:
        data=made_by("preprocess", "data/manifest.json"),
        model=start_model("manifest.json"),
        lock=f"locks/{lock_name(config['resources']['platform'], config['rollout']['backend'])}.txt",
    output:
        estimates=report(
            "{root}/preflight/{stage}.json",
            caption="../report/captions/preflight.rst",
            category="Preflight",
            labels={"file": "{stage}", "run": "{root}"},
        ),
    log:
        "{root}/logs/preflight_{stage}.log",
    benchmark:
        "{root}/benchmarks/preflight_{stage}.tsv"
    conda:
        HEAVY_ENVIRONMENT
    threads: lookup(dpath="resources/light/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/light/mem_mb", within=config),
        runtime=lookup(dpath="resources/light/runtime", within=config),
    params:
        settings=lambda wildcards: settings(f"preflight_{wildcards.stage}")(wildcards),
        code=code("preflight", loaded_by_verl=True),
        data=subpath(input.data, parent=True),
        model=start_model("model"),
        work="{root}/train/checkpoints",
        locks=subpath(input.lock, parent=True),
    shell:
        "python scripts/preflight.py --stage {wildcards.stage} --settings {params.settings:q} --data {params.data}"
        " --model {params.model} --work {params.work} --locks {params.locks} --out {output.estimates} --log {log}"
