"""Evaluation on the test set.

results/evaluate/{start,trained}/items.parquet     one row per test item and arm
"""


rule evaluate:
    """Evaluate the start model or the trained one through the same agent loop as training."""
    input:
        data=rules.preprocess.output.manifest,
        model=lambda wildcards: model_manifest(wildcards.model),
        preflight=ancient(rules.preflight.output.report),
    output:
        rows="results/evaluate/{model}/items.parquet",
        manifest="results/evaluate/{model}/manifest.json",
    log:
        "results/logs/evaluate_{model}.log",
    benchmark:
        "results/benchmarks/evaluate_{model}.tsv"
    wildcard_constraints:
        model="start|trained",
    retries: lookup(dpath="resources/retries", within=config)
    conda:
        HEAVY_ENVIRONMENT
    threads: lookup(dpath="resources/evaluate/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/evaluate/mem_mb", within=config),
        runtime=lookup(dpath="resources/evaluate/runtime", within=config),
        gpu=lookup(dpath="resources/evaluate/gpu", within=config),
    params:
        settings=settings("evaluate"),
        code=code("evaluate", *LOADED_BY_VERL),
        data=subpath(input.data, parent=True),
        model=lambda wildcards: model_folder(wildcards.model),
        scorer=code_digest(task_module(), root=SCRIPTS),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/evaluate.py --settings {params.settings:q} --data {params.data} --model {params.model}"
        " --scorer {params.scorer} --threads {threads} --out {params.out} --log {log}"
