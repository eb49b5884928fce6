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
        train="{root}/data/raw/train.jsonl",
        test="{root}/data/raw/test.jsonl",
        manifest="{root}/data/raw/manifest.json",
    log:
        "{root}/logs/download.log",
    benchmark:
        "{root}/benchmarks/download.tsv"
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
        raw=made_by("download", "data/raw/manifest.json"),
        train=made_by("download", "data/raw/train.jsonl"),
        test=made_by("download", "data/raw/test.jsonl"),
        model=made_by("prepare_model", "models/base/manifest.json"),
        tool_config=local_inputs("agent.tool_config"),
    output:
        train="{root}/data/train.parquet",
        validation="{root}/data/validation.parquet",
        test="{root}/data/test.parquet",
        tools="{root}/data/tools.yaml",
        manifest="{root}/data/manifest.json",
    log:
        "{root}/logs/preprocess.log",
    benchmark:
        "{root}/benchmarks/preprocess.tsv"
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
        model=made_by("prepare_model", "models/base/model"),
        out=subpath(output.manifest, parent=True),
    shell:
        "python scripts/preprocess.py --settings {params.settings:q} --data {params.data}"
        " --model {params.model} --out {params.out} --log {log}"
