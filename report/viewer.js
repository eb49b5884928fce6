"use strict";
// Shows the packed trajectories. Everything that a model or a data set wrote is put into the page as text, never as markup.

const PAGE_SIZE = 50;
const LONGEST_TEXT = 20000;
// control characters except tab and line feed, bidirectional controls, and lone surrogates: shown as their code points
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff]" +
    "|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]",
  "g",
);

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function visible(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(UNSEEN)) {
    parts.push(text.slice(end, match.index));
    const code = match[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(element("span", "escape", `\u27e8U+${code}\u27e9`));
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return parts;
}

function textBlock(text, className = "") {
  const block = element("div", `text ${className}`, ...visible(text.slice(0, LONGEST_TEXT)));
  if (text.length <= LONGEST_TEXT) return block;
  const button = element("button", "", `show all ${text.length.toLocaleString("en")} characters`);
  button.type = "button";
  button.addEventListener("click", () => {
    block.replaceChildren(...visible(text));
    button.remove();
  });
  return element("div", "", block, button);
}

function side(name, episode, truth) {
  const extracted = episode.extracted ? episode.extracted.slice(0, 200) : "no answer";
  const verdict = episode.right ? (episode.strict ? "right" : "right, not in the required form") : episode.failure;
  const shown = element("div", "", element("h3", "", name));
  const answer = element("p", episode.right ? "right" : "wrong", "answer ");
  answer.append(...visible(extracted), ` (reference ${truth}): ${verdict}`);
  shown.append(answer);
  for (const turn of episode.turns) {
    shown.append(textBlock(turn.content));
    for (const call of turn.calls) {
      if (call.dropped) shown.append(element("p", "note", "a call beside another one, dropped"));
      else if (call.response !== null) shown.append(textBlock(call.response, "tool"));
    }
  }
  if (episode.cut) shown.append(element("p", "note", `cut by the ${episode.cut} limit`));
  return shown;
}

function entry(item) {
  const summary = element("summary", "", `Item ${item.index}, ${item.flow}: `);
  summary.append(...visible(item.question.slice(0, 100)), item.question.length > 100 ? "…" : "");
  const details = element("details", "", summary);
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const [start, trained] = item.sides;
    const sides = element("div", "sides", side("start", start, item.truth), side("trained", trained, item.truth));
    details.append(textBlock(item.question), sides);
  });
  return details;
}

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function searchable(item) {
  if (item.haystack === undefined) {
    const turns = item.sides.flatMap((episode) => episode.turns.flatMap((turn) => [
      turn.content, ...turn.calls.map((call) => call.response || ""),
    ]));
    item.haystack = [item.index, item.question, item.truth, ...turns].join("\n").toLowerCase();
  }
  return item.haystack;
}

function setOptions(select, values, all) {
  const before = select.value;
  const options = all ? [["", all], ...values.map((value) => [value, value])] : values.map((value) => [value, value]);
  select.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}

async function startViewer() {
  const data = await unpacked(document.getElementById("packed").textContent.trim());
  const field = (name) => document.getElementById(`viewer-${name}`);
  const list = field("list");
  const more = field("more");
  let found = [];
  let shown = 0;

  const showMore = () => {
    const next = found.slice(shown, shown + PAGE_SIZE);
    list.append(...next.map(entry));
    shown += next.length;
    more.hidden = shown >= found.length;
  };
  const items = () => data.runs[field("run").value][field("arm").value];
  const refresh = () => {
    const flow = field("flow").value;
    const failure = field("failure").value;
    const wanted = field("search").value.toLowerCase();
    found = items().filter((item) =>
      (!flow || item.flow === flow) &&
      (!failure || item.sides.some((episode) => episode.failure === failure)) &&
      (!wanted || searchable(item).includes(wanted)));
    shown = 0;
    list.replaceChildren();
    showMore();
    field("count").textContent = `${found.length} of ${items().length} items`;
  };
  const changeArm = () => {
    const failures = new Set(items().flatMap((item) => item.sides.map((episode) => episode.failure)));
    setOptions(field("failure"), [...failures].filter(Boolean).sort(), "all");
    refresh();
  };
  const changeRun = () => {
    setOptions(field("arm"), Object.keys(data.runs[field("run").value]));
    changeArm();
  };

  setOptions(field("run"), Object.keys(data.runs));
  field("run").parentElement.hidden = Object.keys(data.runs).length === 1;
  field("run").addEventListener("change", changeRun);
  field("arm").addEventListener("change", changeArm);
  for (const name of ["flow", "failure"]) field(name).addEventListener("change", refresh);
  let waiting;
  field("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(refresh, 120);
  });
  more.addEventListener("click", showMore);
  changeRun();
  document.body.dataset.viewer = "ready";
}

startViewer().catch((error) => {
  document.getElementById("viewer-count").textContent = `The trajectories cannot be shown: ${error.message}`;
});
