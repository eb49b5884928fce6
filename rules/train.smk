"""Reinforcement learning.

results/train/model             the trained model, in Hugging Face form
results/train/metrics.jsonl     verl's metrics, one line a step
results/train/rollouts/         the training rollouts, one file a step
results/train/checkpoints/      undeclared, keyed by the run's fingerprint: a retry resumes
"""


rule train:
    """Train the agent with verl (GRPO, multi-turn tool agent loop) and export the model."""
    input:
        data=rules.preprocess.output.manifest,
        model=model_manifest("start"),
        preflight=ancient(rules.preflight.output.report),
    output:
        model=directory("results/train/model"),
        rollouts=directory("results/train/rollouts"),
        metrics="results/train/metrics.jsonl",
        manifest="results/train/manifest.json",
    log:
        "results/logs/train.log",
    benchmark:
        "results/benchmarks/train.tsv"
    retries: lookup(dpath="resources/retries", within=config)
    conda:
        HEAVY_ENVIRONMENT
    threads: lookup(dpath="resources/train/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/train/mem_mb", within=config),
        runtime=lookup(dpath="resources/train/runtime", within=config),
        gpu=lookup(dpath="resources/train/gpu", within=config),
    params:
        settings=settings("train"),
        code=code("train", *LOADED_BY_VERL),
        data=subpath(input.data, parent=True),
        model=model_folder("start"),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/train.py --settings {params.settings:q} --data {params.data} --model {params.model}"
        " --code {params.code} --threads {threads} --out {params.out} --log {log}"
