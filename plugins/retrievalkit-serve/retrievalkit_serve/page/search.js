"use strict";
const byId = (id) => document.getElementById(id);
const [box, views, message, count, why] = ["query", "views", "message", "count", "why"].map(byId);
const METHODS = { rrf: "combined by rank", sum: "combined by score", linear: "combined by scaled score" };
const FUSIONS = [
  ["", "combined as usual", {}],
  ["rrf", METHODS.rrf, { fusion: "rrf" }],
  ["sum", METHODS.sum, { fusion: "sum" }],
  ["min_max", `${METHODS.linear} (min-max)`, { fusion: "linear", normalization: "min_max" }],
  ["z_score", `${METHODS.linear} (z-score)`, { fusion: "linear", normalization: "z_score" }],
];
const KNOWN = ["query", "k", "why", "filter", "view", "open"];
const COUNTS = [5, 10, 20, 50, 100];
const MOST_VIEWS = 4;
const SHOWN_FACETS = 3;
let served = { collection: "", examples: [], facets: {}, indexes: [], notes: [], reranker: null, rerank: 0 };
let state = { query: "", k: 10, why: false, filter: "", open: "", views: [] };

// Texts of the service are inserted as text, never as HTML, with a visible sign for characters that reorder text.
const plain = (text) => String(text).replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
const make = (name, className, text) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = plain(text);
  return element;
};

// Spans count characters, but some characters take two units in JavaScript's strings.
const marked = (element, text, spans) => {
  const characters = Array.from(plain(text));
  let last = 0;
  for (const [start, end] of spans) {
    element.append(characters.slice(last, start).join(""), make("mark", "", characters.slice(start, end).join("")));
    last = end;
  }
  element.append(characters.slice(last).join(""));
};

const fetchJson = async (path, body, signal) => {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const response = await fetch(path, { ...options, headers, signal }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The service does not answer. Check that it runs, and search again.");
  });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) {
    byId("locked").open || byId("locked").showModal();
    throw new Error("The token is missing or wrong.");
  }
  if (!response.ok) {
    throw new Error(answer.error?.message ?? `The service answered with status ${response.status}.`);
  }
  return answer;
};

// The address contains the state: ?query=...&k=20&filter=...&open=ID&view=INDEX,INDEX~FUSION&view=INDEX
const encodeView = (view) => {
  const flags = [view.fusion, view.rerank === rerankByDefault() ? "" : view.rerank ? "read" : "plain"].filter(Boolean);
  return [view.indexes.map(encodeURIComponent).join(","), ...flags].join("~");
};
const address = (opened = state.open) => {
  const values = new URLSearchParams();
  if (state.query) values.set("query", state.query);
  if (state.k !== 10) values.set("k", state.k);
  if (state.why) values.set("why", "1");
  if (state.filter) values.set("filter", state.filter);
  if (opened) values.set("open", opened);
  const isDefault = state.views.length === 1 && encodeView(state.views[0]) === encodeView(defaultView());
  if (!isDefault) for (const view of state.views) values.append("view", encodeView(view));
  const text = values.toString();
  return text ? `?${text}` : location.pathname;
};
const rerankByDefault = () => served.rerank > 0;
const defaultView = () => ({ indexes: served.indexes.map((index) => index.name), fusion: "", rerank: rerankByDefault() });
const decodeView = (text, problems) => {
  const [names, ...flags] = text.split("~");
  const known = served.indexes.map((index) => index.name);
  const decoded = names.split(",").map((name) => { try { return decodeURIComponent(name); } catch { return name; } });
  const unknown = decoded.filter((name) => !known.includes(name));
  if (unknown.length) problems.push(`There is no index ${unknown.join(", ")}; there is ${known.join(", ")}.`);
  const fusion = flags.find((flag) => FUSIONS.some(([name]) => name === flag)) ?? "";
  const strange = flags.filter((flag) => flag !== fusion && !["plain", "read"].includes(flag));
  if (strange.length) problems.push(`View ${text} has the unknown part ${strange.join(", ")}.`);
  return { indexes: known.filter((name) => decoded.includes(name)), fusion, rerank: !flags.includes("plain") && (rerankByDefault() || flags.includes("read")) };
};
const readAddress = () => {
  const values = new URLSearchParams(location.search);
  const problems = [];
  const names = [...new Set(values.keys())];
  const unknown = names.filter((name) => !KNOWN.includes(name));
  if (unknown.length) problems.push(`The address has ${unknown.join(", ")}, which this page ignores: it reads ${KNOWN.join(", ")}.`);
  const repeated = names.filter((name) => KNOWN.includes(name) && name !== "view" && values.getAll(name).length > 1);
  if (repeated.length) problems.push(`The address has ${repeated.join(", ")} several times; the first counts.`);
  const all = values.getAll("view");
  if (all.length > MOST_VIEWS) problems.push(`The address has ${all.length} columns; the page shows ${MOST_VIEWS}.`);
  const wanted = all.slice(0, MOST_VIEWS).map((text) => decodeView(text, problems)).filter((view) => view.indexes.length);
  const asked = values.get("k") ?? "10";
  const k = /^[1-9]\d{0,8}$/.test(asked) ? Number(asked) : 10;
  if (String(k) !== asked) problems.push(`k is ${asked}, not a number of results; ${k} are shown.`);
  if (!["0", "1", null].includes(values.get("why"))) problems.push(`why is ${values.get("why")}; it is 0 or 1.`);
  state = {
    query: values.get("query") ?? "", k, why: values.get("why") === "1", filter: values.get("filter") ?? "",
    open: values.get("open") ?? "", views: wanted.length ? wanted : [defaultView()],
  };
  message.className = problems.length ? "bad" : "";
  message.textContent = plain(problems.join(" "));
};

// Indexes by what people know: they find texts by meaning, or by words.
const wayOf = (index) => index.vectors ? "meaning" : index.model ? "related words" : "words";
const labelOf = (name) => {
  const index = served.indexes.find((known) => known.name === name);
  if (!index) return name;
  const way = wayOf(index);
  return served.indexes.filter((other) => wayOf(other) === way).length > 1 ? `${way} (${name})` : way;
};

const formatted = (number) => {
  if (number === null || number === undefined) return "";
  return Number(number.toPrecision(5)).toString();
};

// A line for each index with rank, score and reasons; the rank and score of a single index are those of the hit.
const reasons = (hit) => {
  const lines = make("div", "found");
  if (hit.retrieved) {
    lines.append(make("div", "", `before re-ranking: place ${hit.retrieved.rank}`));
  }
  const several = hit.found.length > 1;
  for (const [place, sentence] of hit.why.entries()) {
    const line = make("div");
    const ranked = hit.found[place];
    if (several) line.append(make("b", "", `by ${labelOf(ranked.index)}`), ` ${ranked.rank === null ? "not found" : `place ${ranked.rank}`} `, make("span", "score", formatted(ranked.score)));
    const why = several ? sentence.split("  ").slice(1).join("  ") : sentence;
    if (why) line.append(make("span", "why", why));
    lines.append(line);
  }
  return lines;
};

const shownFields = (fields) => Object.entries(fields ?? {}).map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join(", ") : value}`).join(" · ");
// Headings below the title, and the page.
const placeOf = (text) => {
  const below = text.heading?.startsWith(`${text.title} > `) ? text.heading.slice(text.title.length + 3) : text.heading;
  return [below === text.title ? "" : below, text.page ? `page ${text.page}` : ""].filter(Boolean).join(" · ");
};
const isCode = (id) => /\.(py|ipynb|jsx?|tsx?|java|kt|c|h|cc|cpp|hpp|cs|go|rs|rb|php|pl|r|sh|sql|css|json|ya?ml|toml|ini|xml)(#\d+)?$/i.test(id);

// The texts of a hit are its passages, or its own text if it has none.
const textElement = (hit, text) => {
  const element = make("div", "text");
  const snippet = make("div", `snippet${isCode(hit.id) ? " code" : ""}`);
  const place = placeOf(text);
  if (hit.passages) {
    element.dataset.id = text.id;
    const part = make("button", "part", place || `passage ${text.id.slice(hit.id.length + 1)}`);
    part.type = "button";
    part.title = "Read it in the document";
    element.append(part);
  } else if (place) element.append(make("div", "part", place));
  marked(snippet, text.snippet, text.spans);
  element.append(snippet, reasons(text));
  return element;
};
const fill = (item, hit) => {
  const texts = (hit.passages ?? [hit]).map((text) => textElement(hit, text));
  if (hit.passages && hit.retrieved) texts[0].append(reasons({ ...hit, found: [], why: [] }));
  item.querySelector(".texts").replaceChildren(...texts);
};

const hitElement = (hit) => {
  const item = make("li", "hit");
  item.tabIndex = -1;
  item.dataset.id = hit.id;
  item.append(make("span", "rank", hit.rank));
  const body = make("div");
  const head = make("h2");
  const title = make("a", "title", hit.title || hit.id);
  title.href = address(hit.passages?.[0].id ?? hit.id);
  title.setAttribute("aria-expanded", "false");
  head.append(title);
  if (hit.title && hit.title !== hit.id) head.append(make("span", "id", hit.id));
  const score = make("span", "score", formatted(hit.score));
  score.title = "The score; only scores of the same search can be compared";
  head.append(score, make("span", "elsewhere"));
  body.append(head);
  if (Object.keys(hit.fields ?? {}).length) body.append(make("div", "fields", shownFields(hit.fields)));
  body.append(make("div", "texts"));
  const rest = (hit.passages?.length ?? 0) - 1;
  if (rest > 0) {
    const more = make("button", "more", `${rest} more ${rest === 1 ? "passage" : "passages"} of this document`);
    more.type = "button";
    more.addEventListener("click", () => showAll(item));
    body.append(more);
  }
  item.append(body);
  item.passages = hit.passages ?? [hit];
  fill(item, hit);
  item.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.target.closest(".whole, .more")) return;
    event.preventDefault();
    if (getSelection().toString()) return;
    item.focus({ preventScroll: true });
    open(item, event.target.closest(".text")?.dataset.id);
  });
  item.addEventListener("focus", () => showSame(hit.id));
  item.addEventListener("mouseenter", () => showSame(hit.id));
  return item;
};
const showAll = (item) => {
  item.classList.add("all");
  item.querySelector(".more")?.remove();
};

// A PDF opens at the page; a link cannot carry the token.
const pdfLink = (id, page) => {
  const link = make("a", "", page ? `Open the PDF at page ${page}` : "Open the PDF");
  const at = page ? `#page=${page}` : "";
  link.href = `/file?${new URLSearchParams({ id })}${at}`;
  link.target = "_blank";
  link.rel = "noopener";
  link.addEventListener("click", async (event) => {
    const token = sessionStorage.getItem("token");
    if (!token) return;
    event.preventDefault();
    const tab = window.open("");
    const response = await fetch(link.href, { headers: { Authorization: `Bearer ${token}` } });
    tab.location = URL.createObjectURL(await response.blob()) + at;
  });
  return link;
};

// The text of a document, scrolled to one of its passages, which is highlighted.
const showWhole = (item, whole, result, passage) => {
  const part = result.passages?.length > 1 ? result.passages.find((entry) => entry.id === passage) : null;
  const hit = item.passages.find((text) => text.id === passage) ?? {};
  const characters = Array.from(result.text);
  const cuts = part ? [0, part.start, part.end, characters.length] : [0, characters.length];
  const bar = make("div", "file");
  const name = make("span", "", [result.id, placeOf(hit)].filter(Boolean).join(" · "));
  name.title = plain(result.file ?? result.id);
  bar.append(name);
  if (/\.pdf$/i.test(result.file ?? "")) bar.append(pdfLink(result.id, hit.page));
  const close = make("button", "", "×");
  close.type = "button";
  close.setAttribute("aria-label", "Close the document");
  close.addEventListener("click", () => { shut(item); item.focus({ preventScroll: true }); remember(""); });
  bar.append(close);
  const body = make("div", isCode(result.id) ? "code" : "");
  whole.setAttribute("aria-label", plain(result.title || result.id));
  whole.replaceChildren(bar, body);
  for (const [number, start] of cuts.slice(0, -1).entries()) {
    const end = cuts[number + 1];
    const piece = make("span", number === 1 ? "passage" : "");
    const inside = result.spans.filter(([from, to]) => from >= start && to <= end);
    marked(piece, characters.slice(start, end).join(""), inside.map(([from, to]) => [from - start, to - start]));
    body.append(piece);
  }
  whole.scrollTop = Math.max(0, (whole.querySelector(".passage")?.offsetTop ?? 0) - bar.offsetHeight - 8);
};

// On a wide screen, the document of a single column is shown at its side.
const isSplit = () => state.views.length === 1 && matchMedia("(min-width: 75rem)").matches;
const remember = (id) => {
  state.open = id;
  history.replaceState(null, "", new URL(address(), location).href);
};
const shut = (item) => {
  item.querySelector(".whole")?.remove();
  item.classList.remove("open");
  item.querySelector(".title").setAttribute("aria-expanded", "false");
};
const open = async (item, wanted, silently) => {
  const passage = wanted ?? item.passages[0].id;
  const shown = item.querySelector(".whole")?.dataset.passage === passage;
  if (shown && isSplit()) { if (!silently) remember(passage); return; }
  for (const other of isSplit() ? document.querySelectorAll(".hit.open") : [item]) shut(other);
  if (!silently) remember(shown ? "" : passage);
  if (shown) return;
  const whole = make("div", "whole", "…");
  whole.dataset.passage = passage;
  whole.tabIndex = 0;
  whole.setAttribute("role", "region");
  item.classList.add("open");
  item.querySelector(".title").setAttribute("aria-expanded", "true");
  item.querySelector(".texts").after(whole);
  if (passage !== item.passages[0].id) showAll(item);
  try {
    const values = new URLSearchParams({ id: item.dataset.id, query: state.query });
    showWhole(item, whole, await fetchJson(`/document?${values}`), passage);
    if (!silently && !isSplit()) whole.scrollIntoView({ block: "nearest" });
  } catch (error) { whole.replaceChildren(make("p", "file", error.message)); }
};
// Opens the document of the address, and else, at the side, the first one.
const openFirst = (view, list) => {
  const items = [...list.children];
  const wanted = items.find((item) => item.dataset.id === state.open || item.passages.some((text) => text.id === state.open));
  if (state.open && !wanted && items.length) showState(view, `${view.status.textContent}. The document of the address, ${state.open}, is not among them.`);
  if (wanted && view === state.views[0]) {
    open(wanted, wanted.dataset.id === state.open ? undefined : state.open, true);
    wanted.scrollIntoView({ block: "nearest" });
  } else if (isSplit() && items[0]?.passages[0].snippet) open(items[0], undefined, true);
};

const hitsOf = (view) => [...view.element.querySelectorAll(".hit")];
const showSame = (id) => {
  for (const item of document.querySelectorAll(".hit")) {
    item.classList.toggle("same", state.views.length > 1 && item.dataset.id === id);
  }
};
// The ranks of a column's hits in the other columns.
const compareRanks = () => {
  const ranks = state.views.map((view) => new Map(hitsOf(view).map((item, row) => [item.dataset.id, row + 1])));
  for (const [number, view] of state.views.entries()) {
    for (const item of hitsOf(view)) {
      const others = ranks.flatMap((rank, other) => {
        if (other === number) return [];
        const place = rank.get(item.dataset.id);
        return [place ? `place ${place} in column ${other + 1}` : `not in column ${other + 1}`];
      });
      item.querySelector(".elsewhere").textContent = others.join(", ");
    }
  }
};

const showState = (view, text, bad = false) => {
  view.status.textContent = plain(text);
  view.status.classList.toggle("bad", bad);
};

const addReasons = async (view, body, signal) => {
  try {
    const { hits } = await fetchJson("/search", { ...body, explain: true }, signal);
    const items = new Map(hitsOf(view).map((item) => [item.dataset.id, item]));
    for (const hit of hits) if (items.has(hit.id)) fill(items.get(hit.id), hit);
    explainKinds(view, hits);
  } catch (error) {
    if (error.name !== "AbortError") showState(view, `${view.status.textContent}, without reasons: ${error.message}`, true);
  }
};

const search = async (view) => {
  view.request?.abort();
  const list = view.element.querySelector("ol");
  if (!state.query.trim()) { list.replaceChildren(); view.cue.hidden = true; showState(view, ""); return; }
  const request = view.request = new AbortController();
  showState(view, "searching …");
  delete view.element.dataset.done;
  const several = view.indexes.length > 1;
  const body = {
    query: state.query, k: state.k, indexes: view.indexes, ...(state.filter ? { filter: state.filter } : {}),
    ...(several ? FUSIONS.find(([name]) => name === view.fusion)[2] : {}),
    ...(served.reranker && view.rerank !== rerankByDefault() ? { rerank: view.rerank ? Math.min(100, served.limits.k) : 0 } : {}),
  };
  // Reasons for vector scores take longer than the search, so hits are shown without them first, except re-ranked hits.
  const later = state.why && !view.rerank && served.indexes.some((index) => index.model && view.indexes.includes(index.name));
  try {
    const response = await fetchJson("/search", { ...body, explain: state.why && !later }, request.signal);
    list.replaceChildren(...response.hits.map(hitElement));
    const number = response.hits.length === 1 ? "1 result" : `${response.hits.length} results`;
    const seconds = Math.max(.01, response.took_ms / 1000).toFixed(2);
    const method = response.fusion && (state.why || state.views.length > 1) ? `, ${METHODS[response.fusion.method] ?? `combined: ${response.fusion.method}`}` : "";
    const read = response.reranker ? `, re-ranked by ${response.reranker}` : "";
    const none = state.filter ? "Nothing was found among the texts that pass the filter" : "Nothing was found. Try other words";
    showState(view, `${response.hits.length ? `${number} in ${seconds} seconds` : none}${method}${read}${response.notes.map((note) => `. Note: ${note}`).join("")}`);
    view.cue.hidden = !response.doubt;
    if (response.doubt) view.cue.replaceChildren(make("b", "", "Probably nothing here answers this. "), make("span", "", response.doubt));
    openFirst(view, list);
    view.element.dataset.done = "";
    compareRanks();
    explainKinds(view, response.hits);
    if (later && response.hits.length) await addReasons(view, body, request.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    list.replaceChildren();
    view.cue.hidden = true;
    showState(view, error.message, true);
    compareRanks();
  }
};

// The legend explains what the hits show.
const kindsOf = (hits) => new Set(hits.flatMap((hit) => [
  ...hit.found.flatMap((ranked) => [...Object.keys(ranked), ranked.rank === null ? "absent" : ""]),
  hit.found.length > 1 ? "several" : "", hit.retrieved ? "retrieved" : "", hit.passages ? "passages" : "",
]));
const explainKinds = (view, hits) => {
  view.kinds = kindsOf(hits);
  const kinds = state.views.map((view) => view.kinds ?? new Set());
  for (const entry of document.querySelectorAll("#legend [data-kind]")) {
    entry.hidden = !kinds.some((own) => own.has(entry.dataset.kind));
  }
};

// Facets and the filter's text box edit the same expression.
const quoted = (value) => {
  if (typeof value !== "string") return String(value);
  const bare = /^[A-Za-z_][\w.-]*$/.test(value) && !/^(and|or|not|in|has|true|false)$/i.test(value);
  return bare ? value : `"${value.replace(/["\\]/g, "\\$&")}"`;
};
const clause = (field, values) => `${quoted(field)} in (${values.map(quoted).join(", ")})`;
const facets = () => Object.entries(served.facets)
  .sort((first, second) => first[1].length - second[1].length).slice(0, SHOWN_FACETS);
const fieldNames = () => [...new Set(served.indexes.flatMap((index) => index.fields))];
const filterOf = (chosen) => facets().filter(([field]) => chosen[field]?.length).map(([field]) => clause(field, chosen[field])).join(" and ");
// The chosen values of each facet; none if the filter was typed.
const chosenIn = (filter) => {
  const chosen = {};
  for (const [field, values] of facets()) {
    const start = filter.indexOf(`${quoted(field)} in (`);
    const inside = filter.slice(start).match(/ in \((.*?)\)(?: and |$)/)?.[1].split(", ") ?? [];
    chosen[field] = start < 0 ? [] : values.map(([value]) => value).filter((value) => inside.includes(quoted(value)));
  }
  return filterOf(chosen) === filter ? chosen : {};
};
const facetElement = (field, values) => {
  const set = make("fieldset");
  set.append(make("legend", "", field));
  for (const [value, texts] of values) {
    const label = make("label");
    const box = make("input");
    box.type = "checkbox";
    box.addEventListener("change", () => {
      const now = chosenIn(state.filter);
      now[field] = values.map(([other]) => other).filter((other) => other === value ? box.checked : now[field]?.includes(other));
      setFilter(filterOf(now));
    });
    const number = make("span", "", texts.toLocaleString());
    number.title = "texts";
    label.append(box, ` ${plain(value)}`, number);
    set.append(label);
  }
  return set;
};
const showFilter = () => {
  byId("filter").value = state.filter;
  byId("narrowed").textContent = plain(state.filter);
  const chosen = chosenIn(state.filter);
  for (const [set, [field, values]] of [...byId("facets").children].map((set, row) => [set, facets()[row]])) {
    for (const [row, box] of [...set.querySelectorAll("input")].entries()) box.checked = chosen[field]?.includes(values[row][0]) ?? false;
  }
};
const setFilter = (filter) => {
  state.filter = filter.trim();
  state.open = "";
  showFilter();
  saveAddress();
  for (const view of state.views) search(view);
};

// The start page: indexes and example queries.
const indexRow = (index) => {
  const row = make("tr");
  const number = (value) => make("td", "number", value?.toLocaleString() ?? "");
  row.append(make("td", "", index.name), make("td", "", wayOf(index)), number(index.texts), number(index.vectors), make("td", "", index.model ?? ""));
  return row;
};
const example = (text) => {
  const link = make("a", "", text);
  link.href = `?${new URLSearchParams({ query: text })}`;
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    box.value = text;
    submit();
  });
  return link;
};
const showStart = () => {
  const blank = !state.query.trim();
  document.title = blank ? served.collection : `${state.query} – ${served.collection}`;
  byId("start").hidden = !blank;
  views.hidden = blank;
  byId("legend").hidden = blank || !state.why;
  byId("narrow").hidden = blank || !fieldNames().length;
  document.body.classList.toggle("split", !blank && state.views.length === 1);
};

const saveAddress = () => {
  const next = new URL(address(), location).href;
  if (next !== location.href) history.pushState(null, "", next);
};
const refresh = (view) => { state.open = ""; saveAddress(); search(view); };

const viewElement = (view, number) => {
  const element = view.element = make("section", "view");
  element.setAttribute("aria-label", `Column ${number + 1}`);
  const choice = make("div", "choice");
  for (const index of served.indexes) {
    const chip = make("label", "chip");
    const box = make("input");
    box.type = "checkbox";
    box.checked = view.indexes.includes(index.name);
    box.addEventListener("change", () => {
      const now = served.indexes.map((known) => known.name).filter((name) => name === index.name ? box.checked : view.indexes.includes(name));
      if (!now.length) { box.checked = true; return; }
      view.indexes = now;
      fusion.hidden = now.length < 2;
      refresh(view);
    });
    chip.title = `${index.name}: ${index.indexer}, ${index.texts.toLocaleString()} texts${index.model ? `, ${index.model}` : ""}`;
    chip.append(box, ` ${labelOf(index.name)}`);
    choice.append(chip);
  }
  const fusion = make("select");
  fusion.setAttribute("aria-label", "How the results are combined");
  for (const [name, label] of FUSIONS) fusion.append(new Option(name || !served.fusion ? label : `${METHODS[served.fusion.method] ?? served.fusion.method} (as usual)`, name));
  fusion.value = view.fusion;
  fusion.hidden = view.indexes.length < 2;
  fusion.addEventListener("change", () => { view.fusion = fusion.value; refresh(view); });
  choice.append(fusion);
  if (served.reranker) {
    const label = make("label");
    const box = make("input");
    box.type = "checkbox";
    box.checked = view.rerank;
    box.addEventListener("change", () => { view.rerank = box.checked; refresh(view); });
    label.append(box, " re-rank");
    choice.append(label);
  }
  if (state.views.length > 1) {
    const close = make("button", "", "×");
    close.type = "button";
    close.title = "Close this column (x)";
    close.setAttribute("aria-label", `Close column ${number + 1}`);
    close.addEventListener("click", () => drop(view));
    choice.append(close);
  }
  choice.hidden = served.indexes.length < 2 && !served.reranker && state.views.length < 2;
  view.status = make("p", "state");
  view.status.setAttribute("role", "status");
  view.cue = make("p", "cue");
  view.cue.hidden = true;
  view.cue.setAttribute("role", "status");
  const list = make("ol");
  list.setAttribute("role", "list"); // Safari drops the role of lists without numbers
  element.append(choice, view.status, view.cue, list);
  return element;
};

const draw = () => {
  if (!COUNTS.includes(state.k)) COUNTS.push(state.k);
  count.replaceChildren(...COUNTS.sort((first, second) => first - second).map((number) => new Option(number, number)));
  count.value = state.k;
  why.checked = state.why;
  document.body.classList.toggle("plain", !state.why);
  showStart();
  showFilter();
  views.replaceChildren(...state.views.map(viewElement));
  byId("add").disabled = state.views.length >= MOST_VIEWS;
  for (const view of state.views) search(view);
};

const add = () => {
  if (state.views.length >= MOST_VIEWS) return;
  const shown = new Set(state.views.map(encodeView));
  const singles = served.indexes.map((index) => ({ ...defaultView(), indexes: [index.name] }));
  const fusions = FUSIONS.slice(1).map(([fusion]) => ({ ...defaultView(), fusion }));
  const fresh = [defaultView(), ...singles, ...(served.indexes.length > 1 ? fusions : [])].find((view) => !shown.has(encodeView(view)));
  state.views.push(fresh ?? defaultView());
  saveAddress();
  draw();
};
const drop = (view) => {
  if (state.views.length < 2) return;
  state.views = state.views.filter((other) => other !== view);
  saveAddress();
  draw();
};
const submit = () => {
  if (state.query !== box.value) state.open = "";
  state.query = box.value;
  showStart();
  saveAddress();
  for (const view of state.views) search(view);
};
const switchWhy = () => {
  state.why = why.checked;
  document.body.classList.toggle("plain", !state.why);
  showStart();
  saveAddress();
  if (state.why) for (const view of state.views) search(view);
};

// The hit that has the focus, with its column and row; -1 if no hit has it.
const place = () => {
  const item = document.activeElement?.closest?.(".hit");
  const column = state.views.findIndex((view) => item && view.element.contains(item));
  return { item, column, row: column < 0 ? -1 : hitsOf(state.views[column]).indexOf(item) };
};
const goTo = (column, row) => {
  const items = state.views[column] ? hitsOf(state.views[column]) : [];
  const item = items[Math.max(0, Math.min(row, items.length - 1))];
  if (item) { item.focus({ preventScroll: true }); item.scrollIntoView({ block: "nearest", inline: "nearest" }); }
};
const moves = {
  ArrowDown: (at) => goTo(Math.max(0, at.column), at.row + 1),
  ArrowUp: (at) => at.row > 0 ? goTo(at.column, at.row - 1) : at.row === 0 && box.focus(),
  ArrowRight: (at) => at.column >= 0 && goTo(at.column + 1, at.row),
  ArrowLeft: (at) => at.column > 0 && goTo(at.column - 1, at.row),
  Enter: (at) => at.item && open(at.item),
  "/": () => { box.focus(); box.select(); },
  Escape: () => { box.focus(); box.select(); },
  "?": () => byId("help").showModal(),
  c: add,
  x: (at) => drop(state.views[Math.max(0, at.column)]),
  w: () => { why.checked = !why.checked; switchWhy(); },
};
Object.assign(moves, { j: moves.ArrowDown, k: moves.ArrowUp, l: moves.ArrowRight, h: moves.ArrowLeft });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const field = event.target.closest("input, select, button, a:not(.title), .whole");
  // In the search box, only these two keys are shortcuts.
  if (field && !(field === box && ["ArrowDown", "Escape"].includes(event.key))) {
    if (event.key === "Escape") field.closest(".hit") ? field.closest(".hit").focus() : box.focus();
    return;
  }
  if (!Object.hasOwn(moves, event.key)) return;
  event.preventDefault();
  moves[event.key](place());
});
byId("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
count.addEventListener("change", () => { state.k = Number(count.value); submit(); });
why.addEventListener("change", switchWhy);
byId("add").addEventListener("click", add);
byId("keys").addEventListener("click", () => byId("help").showModal());
byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  byId("locked").close();
  begin();
});
byId("filtered").addEventListener("submit", (event) => { event.preventDefault(); setFilter(byId("filter").value); });
byId("all").addEventListener("click", () => setFilter(""));
addEventListener("popstate", () => { readAddress(); box.value = state.query; draw(); });

new ResizeObserver(([header]) => document.documentElement.style.setProperty("--top", `${header.target.offsetHeight}px`)).observe(document.querySelector("header"));

const begin = async () => {
  message.textContent = "loading …";
  try {
    served = await fetchJson("/indexes");
    byId("collection").textContent = plain(served.collection);
    byId("notes").textContent = plain(served.notes.join(" "));
    byId("indexes").replaceChildren(...served.indexes.map(indexRow));
    byId("examples").replaceChildren(...served.examples.map(example));
    byId("tries").hidden = !served.examples.length;
    byId("facets").replaceChildren(...facets().map(([field, values]) => facetElement(field, values)));
    byId("filter").placeholder = plain(fieldNames().slice(0, 1).map((name) => `${quoted(name)} = …`).join(""));
    byId("fields").textContent = plain(fieldNames().join(", "));
    readAddress();
    if (!box.value) box.value = state.query; // keep text that was typed before loading
    draw();
  } catch (error) {
    message.className = "bad";
    message.textContent = error.message;
  }
};
begin();
