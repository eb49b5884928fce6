"""Checks before anything heavy starts.

results/preflight.json     estimates of disk and GPU memory; exists if all is well
"""


rule preflight:
    """Check on a CPU what would otherwise fail after minutes: versions, template, parser, rows, batches, room."""
    input:
        data=rules.preprocess.output.manifest,
        model=model_manifest("start"),
        lock=f"locks/{lock_name(config['resources']['platform'], config['rollout']['backend'])}.txt",
    output:
        report="results/preflight.json",
    log:
        "results/logs/preflight.log",
    benchmark:
        "results/benchmarks/preflight.tsv"
    conda:
        HEAVY_ENVIRONMENT
    threads: lookup(dpath="resources/light/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/light/mem_mb", within=config),
        runtime=lookup(dpath="resources/light/runtime", within=config),
    params:
        settings=settings("preflight"),
        code=code("preflight", *LOADED_BY_VERL),
        data=subpath(input.data, parent=True),
        model=model_folder("start"),
        work="results/train/checkpoints",
        locks=subpath(input.lock, parent=True),
    shell:
        "python scripts/preflight.py --settings {params.settings:q} --data {params.data} --model {params.model}"
        " --work {params.work} --locks {params.locks} --out {output.report} --log {log}"
