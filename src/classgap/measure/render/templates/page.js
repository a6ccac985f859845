"use strict";
// All text is inserted with textContent, so a class named <script> is only a name.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, root = document) => root.querySelector(selector);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") node.addEventListener("click", value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// ------------------------------------------------------------------ format of values
// One decimal, as Python rounds: 6.25 is 6.2, as in the rest of the report, where toFixed gives 6.3.
const decimal = (v) => (Math.abs(4 * v) % 4 === 1 ? Math.sign(v) * (Math.abs(v) - 0.05) : v).toFixed(1);
const percent = (v) => (v === null ? "–" : decimal(100 * v).replace("-", "−") + "\u00a0%");
const points = (v) => {
  if (v === null) return "–";
  const size = decimal(Math.abs(100 * v));
  return (size === "0.0" ? "±" : v > 0 ? "+" : "−") + size;
};
const significant = (v) => (v === null ? "–" : Math.abs(v) >= 1e5 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(1) : String(+v.toPrecision(3)).replace("-", "−"));
const show = {
  text: (v) => v, long: (v) => v, group: (v) => v, int: (v) => (v === null ? "–" : v.toLocaleString("en")),
  share: (v) => percent(v), points, number: significant, flag: (v) => (v ? "yes" : "no"), signed: (v) => (v > 0 ? "+" : "") + significant(v),
};

function whisker(at, low, high, group) {
  if (at === null) return null;
  const [l, h] = [low ?? at, high ?? at].map((v) => Math.min(1, Math.max(0, v)));
  return make("span", { class: `whisker ${group || ""}`, style: { "--at": at, "--low": l, "--high": h } }, make("i"), make("b"));
}

// In a table of different numbers, every row has its own kind: shares as per cent, and their changes in points.
function kindOf(table, column, row) {
  if (column.kind === "value") return table.kinds[row];
  return column.kind === "change" ? (table.kinds[row] === "share" ? "points" : "signed") : column.kind;
}

// Only a difference that is significant, or whose interval excludes 0, is coloured; the ends of an interval never are.
function isSure(table, column, row) {
  const d = table.data;
  if (/(^|_)(low|high)$/.test(column.key)) return false;
  if (d.significant) return Boolean(d.significant[row]);
  return d.low && d.high ? d.low[row] > 0 || d.high[row] < 0 : true;
}

function cell(table, column, row) {
  const value = table.data[column.key][row];
  const td = make("td", { class: [column.kind === "text" || column.kind === "group" ? "text" : "", column.kind === "long" ? "long" : ""].join(" ").trim() });
  if (column.kind === "group") td.append(value ? make("span", { class: `chip ${value}` }, value) : "–");
  else td.textContent = (show[kindOf(table, column, row)] || String)(value);
  if (column.kind === "text") td.title = value;
  if (column.kind === "points" && value && isSure(table, column, row)) td.classList.add(value > 0 ? "up" : "down");
  if (column.interval && value !== null) {
    const [low, high] = column.interval.map((key) => table.data[key][row]);
    td.title = `${percent(low)} to ${percent(high)}`;
    td.append(whisker(value, low, high, table.data.group?.[row]) ?? "");
  }
  return td;
}

// ------------------------------------------------------------------ sortable, searchable, downloadable tables
const PAGE = 15, SHORT = 80, PRINTED = 9;  // rows shown at first; of the tables in WHOLE more; columns on paper (see page.css)
const WHOLE = ["metrics", "groups", "margins"];

function csv(table, order) {
  // A spreadsheet would run text that begins like a formula: an apostrophe in front makes it text.
  const safe = (v) => (typeof v === "string" && /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(v) && isNaN(v) ? `'${v}` : String(v));
  const quote = (v) => (v === null ? "" : /[",\n\r]/.test(safe(v)) ? `"${safe(v).replaceAll('"', '""')}"` : safe(v));
  const keys = Object.keys(table.data).filter((key) => key !== "picture");
  return [keys.map(quote).join(","), ...order.map((row) => keys.map((key) => quote(table.data[key][row])).join(","))].join("\n");
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function mountTable(host) {
  const id = host.dataset.table;
  const table = data.tables[id];
  const size = table.data[table.columns[0].key].length;
  const texts = table.columns.filter((c) => c.kind === "text").map((c) => table.data[c.key]);
  const haystack = Array.from({ length: size }, (_, row) => texts.map((t) => t[row]).join("\u0001").toLowerCase());
  const groups = [...new Set(table.data.group ?? [])].filter(Boolean);
  const first = WHOLE.includes(id) && size <= SHORT ? size : PAGE;
  let order = [], shown = first, sort = table.sort ?? null;

  const search = make("input", { type: "search", placeholder: "search", "aria-label": "search" });
  const group = make("select", { "aria-label": "group" }, make("option", { value: "" }, "all groups"), ...groups.map((g) => make("option", { value: g }, g)));
  const least = make("input", { type: "number", min: "1", value: "1", "aria-label": "at least this many samples" });
  const count = make("span", { class: "count", "aria-live": "polite" });
  const save = make("button", { class: "button", onclick: () => download(`${id}.csv`, csv(table, order)) }, "Download CSV");
  const tools = make("div", { class: "tools" });
  if (size > 8) tools.append(search);
  if (groups.length > 1) tools.append(group);
  if (table.least) tools.append(make("label", {}, "at least", least, "samples"));
  const hidden = make("span", { class: "hint", hidden: true }, "more columns →");
  tools.append(count, hidden, save);

  const heads = table.columns.map((column) => {
    const th = make("th", { class: ["text", "group", "long"].includes(column.kind) ? "text" : null, scope: "col", title: column.help },
      make("button", { type: "button", onclick: () => setSort(column) }, column.label));
    return th;
  });
  heads[0].classList.add("first");
  const body = make("tbody");
  const more = make("button", { class: "button more", onclick: () => { shown += 100; draw(); } }, "Show more");
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.label }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
  const frame = make("div", { class: "frame" }, scroll);
  const hint = () => { hidden.hidden = !frame.classList.toggle("cut", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 2); };
  scroll.addEventListener("scroll", hint, { passive: true });
  new ResizeObserver(hint).observe(scroll);
  const printed = make("p", { class: "printed small faint" });
  host.append(tools, frame, more, printed);

  function setSort(column) {
    const textual = ["text", "group", "long"].includes(column.kind);
    const down = sort?.key === column.key ? !sort.down : !textual;
    sort = { key: column.key, down };
    update();
  }

  function update() {
    const query = search.value.trim().toLowerCase();
    const minimum = Number(least.value) || 0;
    order = [];
    for (let row = 0; row < size; row++) {
      if (query && !haystack[row].includes(query)) continue;
      if (group.value && table.data.group[row] !== group.value) continue;
      if (table.least && table.data[table.least][row] < minimum) continue;
      order.push(row);
    }
    if (sort) {
      const values = table.data[sort.key], sign = sort.down ? -1 : 1;
      order.sort((a, b) => {
        const [x, y] = [values[a], values[b]];
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
      });
    }
    table.columns.forEach((column, i) => {
      heads[i].setAttribute("aria-sort", sort?.key === column.key ? (sort.down ? "descending" : "ascending") : "none");
    });
    shown = first;
    draw();
  }

  function draw() {
    body.replaceChildren(...order.slice(0, shown).map((row) => {
      const tr = make("tr", {}, ...table.columns.map((column) => cell(table, column, row)));
      tr.firstChild.classList.add("first");
      if (host.onpick) {
        tr.classList.add("pick");
        tr.tabIndex = 0;
        const pick = () => { $("tr[aria-selected]", body)?.removeAttribute("aria-selected"); tr.setAttribute("aria-selected", "true"); host.onpick(row); };
        tr.addEventListener("click", pick);
        tr.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(); });
      }
      return tr;
    }));
    count.textContent = order.length === size ? (size === 1 ? "1 row" : `${size.toLocaleString("en")} rows`) : `${order.length.toLocaleString("en")} of ${size.toLocaleString("en")} rows`;
    more.hidden = shown >= order.length;
    const parts = [more.hidden ? null : `the first ${shown} of ${order.length.toLocaleString("en")} rows`, table.columns.length > PRINTED ? `${PRINTED} of ${table.columns.length} columns` : null];
    printed.textContent = parts.some(Boolean) ? `Printed: ${parts.filter(Boolean).join(", ")}. The page on screen and report.json have all of them.` : "";
    hint();
  }

  for (const input of [search, group, least]) input.addEventListener("input", update);
  host.find = (text) => { search.value = text; update(); };
  update();
}

// ------------------------------------------------------------------ confusions in both directions
const classes = data.tables.classes.data;
const rowOf = new Map(classes.name.map((name, row) => [name, row]));
const pairs = data.tables.pairs?.data;
const pairRow = new Map(), errorsOf = new Map(), errorsAs = new Map();
if (pairs) {
  const push = (map, key, row) => (map.get(key) ?? map.set(key, []).get(key)).push(row);
  pairs.true.forEach((name, row) => {
    pairRow.set(name + "\u0001" + pairs.predicted[row], row);
    push(errorsOf, name, row);
    push(errorsAs, pairs.predicted[row], row);
  });
}
const link = (name) => make("button", { class: "link", type: "button", onclick: () => openClass(name) }, name);

function direction(from, to) {
  const row = pairRow.get(from + "\u0001" + to), back = pairRow.get(to + "\u0001" + from);
  const [count, share] = row !== undefined ? [pairs.count[row], pairs.share[row]]
    : back !== undefined && pairs.reverse ? [pairs.reverse[back], pairs.reverse_share[back]] : [0, 0];
  const missing = row === undefined && !data.tables.pairs.complete && !(back !== undefined && pairs.reverse);
  const earlier = pairs.before ? [row === undefined ? 0 : pairs.before[row], row === undefined ? 0 : pairs.share_before[row]] : null;
  const words = earlier ? `${significant(earlier[0])} → ${significant(count)} samples, ${percent(earlier[1])} → ${percent(share)} of ${from}`
    : `${count.toLocaleString("en")} sample${count === 1 ? "" : "s"}, ${percent(share)} of ${from}`;
  return make("div", { class: "direction" },
    make("span", {}, link(from), " predicted as ", link(to)),
    earlier ? make("div", { class: "meter before", title: "before" }, make("i", { style: { "--at": earlier[1] } })) : null,
    make("div", { class: "meter", title: earlier ? "after" : null }, make("i", { style: { "--at": share } })),
    make("span", { class: "small faint" }, missing ? "rare: not stored in this page" : words));
}

function topList(title, rows, side) {
  const items = (rows ?? []).slice().sort((a, b) => pairs.count[b] - pairs.count[a]).slice(0, 6)
    .filter((row) => pairs.count[row] > 0)
    .map((row) => make("li", {}, link(pairs[side][row]), ` ${significant(pairs.count[row])}`));
  return make("div", {}, make("h3", {}, title), items.length ? make("ol", {}, ...items) : make("p", { class: "small faint" }, "none"));
}

function confusions(name) {
  return make("div", { class: "lists" }, topList("Predicted instead", errorsOf.get(name), "predicted"), topList("Wrongly predicted as it", errorsAs.get(name), "true"));
}

function showPair(row) {
  const [a, b] = [pairs.true[row], pairs.predicted[row]];
  $("#pair").replaceChildren(make("h3", {}, "Both directions"), direction(a, b), direction(b, a), make("h3", {}, a), confusions(a));
}

// ------------------------------------------------------------------ one class
function openClass(name) {
  const row = rowOf.get(name);
  if (row === undefined) return;
  const table = data.tables.classes;
  const facts = table.columns.slice(1).map((column) => make("div", { title: column.help },
    make("dt", {}, column.label), make("dd", {}, (show[column.kind] || String)(table.data[column.key][row]) ?? "–")));
  const diagnosis = (data.diagnoses ?? []).find((d) => d.name === name);
  const dialog = $("#class");
  dialog.replaceChildren(
    make("div", { class: "head" }, make("h2", {}, name), make("button", { class: "button", onclick: () => dialog.close(), autofocus: true }, "Close")),
    ...(diagnosis ? diagnosis.causes.map(cause) : []),
    pairs ? confusions(name) : "",
    mistakesOf(name),
    make("dl", {}, ...facts));
  if (!dialog.open) dialog.showModal();
}

function mistakesOf(name) {
  const d = data.tables.mistakes?.data;
  const rows = d ? d.true.map((_, row) => row).filter((row) => d.true[row] === name).slice(0, 6) : [];
  if (!rows.length) return "";
  return make("div", {}, make("h3", {}, "Worst mistakes"), make("div", { class: d.picture ? "gallery" : "cards" }, ...rows.map((row) => sampleCard(d, row))));
}

// Text between backticks is shown as code.
const prose = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));

function evidence(c) {
  return [make("span", {}, ...prose(c.sentence)),
    c.samples.length ? make("span", { class: "small faint" }, `to check: ${c.samples.join(", ")}`) : null];
}

function cause(c) {
  return make("div", { class: "cause" }, make("b", {}, c.title), ...evidence(c), remedies(c));
}

function remedies(c) {
  return make("ul", { class: "remedies" }, ...c.remedies.map((text) => make("li", {}, ...prose(text))));
}

function mountDiagnoses(host) {
  const groups = new Map();
  for (const d of data.diagnoses) for (const c of d.causes) (groups.get(c.title) ?? groups.set(c.title, []).get(c.title)).push({ name: d.name, ...c });
  const sorted = [...groups].sort((a, b) => b[1].length - a[1].length);
  host.append(...sorted.map(([title, found]) => make("article", { class: "card" },
    make("div", { class: "head" }, make("h3", {}, title), make("span", { class: "faint whole" }, found.length === 1 ? "1 class" : `${found.length.toLocaleString("en")} classes`)),
    remedies(found[0]),
    growing("cards", found, 6, (c) => {
      const row = rowOf.get(c.name);
      return make("div", { class: "cause" },
        make("div", { class: "head" }, link(c.name), make("span", { class: "faint" }, percent(classes.accuracy[row]))),
        whisker(classes.accuracy[row], classes.low[row], classes.high[row], classes.group[row]), ...evidence(c));
    }))));
}

// A grid of which the first ``count`` entries are shown, and more on request.
function growing(kind, entries, count, draw) {
  const grid = make("div", { class: kind });
  const more = make("button", { class: "button more", type: "button", onclick: () => { count += 30; fill(); } }, "Show more");
  function fill() {
    grid.replaceChildren(...entries.slice(0, count).map(draw));
    more.hidden = count >= entries.length;
    more.textContent = `Show more (${(entries.length - count).toLocaleString("en")})`;
  }
  fill();
  return make("div", { class: "growing" }, grid, more);
}

// ------------------------------------------------------------------ samples with pictures or texts
function sampleCard(d, row) {
  const picture = d.picture?.[row];
  const [first, second] = d.label ? [d.label, d.suggested] : [d.true, d.predicted];
  const image = picture ? make("img", { src: picture, alt: `picture of ${d.sample[row]}`, loading: "lazy" }) : null;
  image?.addEventListener("load", () => { if (image.naturalWidth < 64) image.classList.add("tiny"); });
  const facts = [d.margin ? `margin ${percent(d.margin[row])}` : null, d.probability_suggested ? `${percent(d.probability_label[row])} → ${percent(d.probability_suggested[row])}` : null, d.cause?.[row] || null];
  return make("article", { class: "card sample" }, image,
    d.text?.[row] ? make("p", { class: "quote" }, d.text[row]) : null,
    make("span", {}, link(first[row]), " → ", link(second[row])),
    make("span", { class: "small faint" }, facts.filter(Boolean).join(" · ").replaceAll("_", " ")),
    make("span", { class: "small faint name", title: d.sample[row] }, d.sample[row]));
}

function mountGallery(host) {
  const d = data.tables[host.dataset.gallery].data;
  const truth = d.label ?? d.true;
  const names = [...new Set(truth)].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const pick = make("select", { "aria-label": d.label ? "label" : "true class" }, make("option", { value: "" }, "all classes"), ...names.map((name) => make("option", { value: name }, name)));
  const place = make("div");
  const fill = () => {
    const rows = truth.map((_, row) => row).filter((row) => !pick.value || truth[row] === pick.value);
    place.replaceChildren(growing(d.picture ? "gallery" : "cards", rows, d.picture ? 24 : 12, (row) => sampleCard(d, row)));
  };
  pick.addEventListener("input", fill);
  host.append(make("div", { class: "tools" }, pick, make("span", { class: "count" }, `${truth.length.toLocaleString("en")} sample${truth.length === 1 ? "" : "s"}`)), place);
  fill();
}

// ------------------------------------------------------------------ figures, drawn when they become visible
const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const drawn = new Map();

async function drawFigure(host) {
  const spec = structuredClone(data.figures[host.dataset.figure]);
  const config = structuredClone(data.themes[isDark() ? "dark" : "light"]);
  config.legend.columns = Math.max(1, Math.min(4, Math.floor(host.clientWidth / 160)));
  drawn.get(host)?.finalize();
  const result = await vegaEmbed(host, { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } }, {
    config, renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false }, downloadFileName: host.dataset.figure,
  });
  drawn.set(host, result);
  result.view.addEventListener("click", (_, item) => openClass(item?.datum?.class));
  // the label of an axis may be the name of a class; Vega keeps what it stands for in __data__, also where it is cut off
  for (const label of host.querySelectorAll(".role-axis-label text")) {
    const name = label.__data__?.datum?.value;
    if (!rowOf.has(name)) continue;
    label.classList.add("class-label");
    label.addEventListener("click", () => openClass(name));
  }
  host.dataset.ready = "";
}

function mountFigures() {
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { watch.unobserve(entry.target); drawFigure(entry.target); }
  }, { rootMargin: "300px" });
  document.querySelectorAll("[data-figure]").forEach((host) => watch.observe(host));
  // Printing shows the whole page. Drawing needs no network and no timer, so it is done before the page is printed.
  window.addEventListener("beforeprint", () => {
    watch.disconnect();
    document.querySelectorAll("[data-figure]:not([data-ready])").forEach(drawFigure);
  });
}

function mountTheme() {
  const button = $("#theme");
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  const redraw = () => { label(); for (const host of drawn.keys()) drawFigure(host); };
  button.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  label();
}

// ------------------------------------------------------------------ start
mountTheme();
document.querySelectorAll("[data-table]").forEach((host) => {
  if (host.dataset.table === "classes") host.onpick = (row) => openClass(classes.name[row]);
  if (host.dataset.table === "pairs") host.onpick = showPair;
  mountTable(host);
});
document.querySelectorAll("[data-gallery]").forEach(mountGallery);
if ($("[data-diagnoses]")) mountDiagnoses($("[data-diagnoses]"));
if (pairs && pairs.true.length) showPair(0);
$("#class").addEventListener("click", (event) => { if (event.target === event.currentTarget) event.currentTarget.close(); });
performance.mark("interactive");
document.documentElement.dataset.interactive = "";
window.addEventListener("load", mountFigures);
