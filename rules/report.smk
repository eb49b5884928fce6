"""The report.

results/report.html     one self-contained page
"""

TEMPLATE = Path(workflow.basedir) / "report" / "template.html"


rule report:
    """Compare the start model and the trained one, and show how training went."""
    input:
        start="results/evaluate/start/manifest.json",
        trained="results/evaluate/trained/manifest.json",
        train=rules.train.output.manifest,
        data=rules.preprocess.output.manifest,
    output:
        html="results/report.html",
    log:
        "results/logs/report.log",
    benchmark:
        "results/benchmarks/report.tsv"
    conda:
        "../envs/light.yaml"
    threads: lookup(dpath="resources/light/threads", within=config)
    resources:
        mem_mb=lookup(dpath="resources/light/mem_mb", within=config),
        runtime=lookup(dpath="resources/light/runtime", within=config),
    params:
        settings=canonical_json(config),
        code=code("report", data_files=[TEMPLATE]),
        results=subpath(output.html, parent=True),
        template=str(TEMPLATE.relative_to(workflow.basedir)),
    shell:
        "python scripts/report.py --settings {params.settings:q} --results {params.results}"
        " --template {params.template} --out {output.html} --log {log}"
