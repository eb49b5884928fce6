"""Reinforcement learning.

results/train/model             the trained model, in Hugging Face form
results/train/metrics.jsonl     verl's metrics, one line a step
results/train/rollouts/         the training rollouts, one file a step
results/train/checkpoints/      undeclared, keyed by the run's fingerprint: a retry resumes
"""


rule train:
    """Train the agent with verl (GRPO, multi-turn tool agent loop) and export the model."""
    input:
        data=made_by("preprocess", "data/manifest.json"),
        model=start_model("manifest.json"),
        preflight=made_by("preflight_train", "preflight/train.json"),
    output:
        model=directory("{root}/train/model"),
        rollouts=directory("{root}/train/rollouts"),
        metrics=report(
            "{root}/train/metrics.jsonl",
            caption="../report/captions/metrics.rst",
            category="Training",
            labels={"file": "metrics", "run": "{root}"},
        ),
        manifest="{root}/train/manifest.json",
    log:
        "{root}/logs/train.log",
    benchmark:
        "{root}/benchmarks/train.tsv"
    conda:
        HEAVY_ENVIRONMENT
    threads: lookup(dpath="resources/train/threads", within=config)
    resources:
        **several_nodes(),
        mem_mb=lookup(dpath="resources/train/mem_mb", within=config),
        runtime=lookup(dpath="resources/train/runtime", within=config),
        gpu=gpus("train"),
    params:
        settings=settings("train"),
        code=code("train", loaded_by_verl=True),
        episode_code=episode_code,
        data=subpath(input.data, parent=True),
        model=start_model("model"),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/train.py --settings {params.settings:q} --data {params.data} --model {params.model}"
        " --code {params.episode_code} --threads {threads}"
        " --memory-mb {resources.mem_mb} --out {params.out} --log {log}"
