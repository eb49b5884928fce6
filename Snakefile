"""Trains and evaluates a tool-using LLM agent: download → preprocess → warm start → train → evaluate → report."""

from snakemake.utils import min_version

min_version("9.0")


configfile: "config/config.yaml"


rule all:
    """The report."""
    input:
        "results/report.html",


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/model.smk"
include: "rules/preflight.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/report.smk"


cap_gpus()


onstart:
    hold_folder()
