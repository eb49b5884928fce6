"""Evaluation on the test set.

results/evaluate/{base,start,trained}/items.parquet     one row per test item and arm
"""


rule evaluate:
    """Evaluate a model (before the warm start, before training, after it) through the same agent loop as training."""
    input:
        data=made_by("preprocess", "data/manifest.json"),
        model=evaluated_model("manifest.json"),
        preflight=made_by("preflight_evaluate", "preflight/evaluate.json"),
    output:
        rows="{root}/evaluate/{model}/items.parquet",
        manifest=report(
            "{root}/evaluate/{model}/manifest.json",
            caption="../report/captions/evaluation.rst",
            category="Evaluation",
            labels={"file": "{model} model", "run": "{root}"},
        ),
    log:
        "{root}/logs/evaluate_{model}.log",
    benchmark:
        "{root}/benchmarks/evaluate_{model}.tsv"
    conda:
        HEAVY_ENVIRONMENT
    threads: lookup(dpath="resources/evaluate/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/evaluate/mem_mb", within=config),
        runtime=lookup(dpath="resources/evaluate/runtime", within=config),
        gpu=gpus("evaluate"),
    params:
        settings=settings("evaluate"),
        code=code("evaluate", loaded_by_verl=True),
        episode_code=episode_code,
        data=subpath(input.data, parent=True),
        model=evaluated_model("model"),
        scorer=lambda wildcards: code_digest(
            task_module(RUNS[wildcards.root].config), root=SCRIPTS
        ),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/evaluate.py --settings {params.settings:q} --data {params.data} --model {params.model}"
        " --code {params.episode_code} --scorer {params.scorer} --threads {threads}"
        " --memory-mb {resources.mem_mb} --out {params.out} --log {log}"
