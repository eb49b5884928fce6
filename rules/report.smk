"""The report.

results/report.html     one self-contained page
"""

PAGE = [
    Path(workflow.basedir) / "report" / name
    for name in ("template.html", "style.css", "viewer.js")
]


rule report:
    """Compare the evaluated models of every run, and the runs with each other."""
    input:
        manifests=[
            f"{folder}/manifest.json"
            for folders in run_folders().values()
            for folder in folders.values()
        ],
    output:
        html=report(
            "results/report.html",
            caption="../report/captions/report.rst",
            category="Result",
            labels={"file": "report", "run": "all"},
        ),
        provenance=report(
            "results/provenance.json",
            caption="../report/captions/provenance.rst",
            category="Result",
            labels={"file": "provenance", "run": "all"},
        ),
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
        runs=canonical_json(run_folders()),
        settings=canonical_json(config),
        code=code_digest(SCRIPTS / "report.py", root=SCRIPTS, data_files=PAGE),
        template=str(PAGE[0].relative_to(workflow.basedir)),
    shell:
        "python scripts/report.py --settings {params.settings:q} --runs {params.runs:q}"
        " --template {params.template} --out {output.html} --provenance {output.provenance} --log {log}"
