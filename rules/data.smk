"""Data.

results/data/raw/{train,test}.jsonl     question/answer rows
results/data/{train,validation,test}.parquet       agent-loop rows for verl
results/data/tools.yaml                 the tools that the agent is offered
"""


rule download:
    """Fetch, read or generate the question/answer rows, with a manifest of counts and checksums."""
    input:
        local=local_inputs("data.path.train", "data.path.test"),
    output:
        train="results/data/raw/train.jsonl",
        test="results/data/raw/test.jsonl",
        manifest="results/data/raw/manifest.json",
    log:
        "results/logs/download.log",
    benchmark:
        "results/benchmarks/download.tsv"
    conda:
        "../envs/light.yaml"
    threads: lookup(dpath="resources/light/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/light/mem_mb", within=config),
        runtime=lookup(dpath="resources/light/runtime", within=config),
    params:
        settings=settings("download"),
        code=code("download"),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/download.py --settings {params.settings:q} --out {params.out} --log {log}"


rule preprocess:
    """Write agent-loop parquet with an explicit schema, and the tool config; measure the prompts."""
    input:
        raw=rules.download.output.manifest,
        train=rules.download.output.train,
        test=rules.download.output.test,
        model="results/models/base/manifest.json",
        tool_config=local_inputs("agent.tool_config"),
    output:
        train="results/data/train.parquet",
        validation="results/data/validation.parquet",
        test="results/data/test.parquet",
        tools="results/data/tools.yaml",
        manifest="results/data/manifest.json",
    log:
        "results/logs/preprocess.log",
    benchmark:
        "results/benchmarks/preprocess.tsv"
    conda:
        "../envs/light.yaml"
    threads: lookup(dpath="resources/light/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/light/mem_mb", within=config),
        runtime=lookup(dpath="resources/light/runtime", within=config),
    params:
        settings=settings("preprocess"),
        code=code("preprocess"),
        data=subpath(input.raw, parent=True),
        model=MODEL_FOLDER.format("base"),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/preprocess.py --settings {params.settings:q} --data {params.data}"
        " --model {params.model} --out {params.out} --log {log}"
