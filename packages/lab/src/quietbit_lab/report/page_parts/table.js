// The table of all runs: sorts by any column, filters by text and mechanism, opens a row for its guarantee.

const STEP = 50; // rows added at a time

const table = { rows: [], sort: "accuracy", down: true, shown: STEP };

function columnsOf(one, rows) {
  const names = [...new Set(one.settings.flatMap((settings) => Object.keys(settings)))];
  const columns = [
    { key: "label", head: "mechanism", value: (row) => page.looks[row.label].name, left: true },
    { key: "epsilon", head: "epsilon ≤", value: (row) => (row.epsilon === null ? Infinity : row.epsilon), text: (row) => (row.epsilon === null ? "none" : number(row.epsilon)) },
    { key: "accuracy", head: "accuracy", value: (row) => row.accuracy ?? -1, text: (row) => (row.accuracy === null ? "–" : percent(row.accuracy)) },
    { key: "deviation", head: "±", value: (row) => row.deviation, text: (row) => (row.seeds > 1 ? (100 * row.deviation).toFixed(1) : "–") },
    { key: "seeds", head: "seeds", value: (row) => row.seeds },
    { key: "rounds", head: "rounds", value: (row) => row.rounds },
    { key: "bytes", head: "bytes per round", value: (row) => row.bytes ?? -1, text: (row) => (row.bytes === null ? "–" : row.bytes.toLocaleString("en")) },
    { key: "uplink", head: "uplink", value: (row) => row.uplink ?? -1, text: (row) => (row.uplink === null ? "–" : bytesShown(row.uplink)) },
  ];
  for (const name of names) {
    const of = (row) => one.settings[row.setting][name];
    columns.push({ key: "s:" + name, head: name, value: (row) => of(row) ?? -Infinity, text: (row) => String(of(row) ?? "–") });
  }
  if (rows.some((row) => row.state)) columns.push({ key: "state", head: "state", value: (row) => row.state, text: (row) => row.state.split(":")[0] || "finished" });
  for (const column of columns) column.text = column.text || ((row) => String(column.value(row)));
  return columns;
}

function startTable() {
  const { one, rows } = page;
  table.rows = rows.filter((row) => row.chosen || row.state);
  table.columns = columnsOf(one, table.rows);
  for (const row of table.rows) row.text = table.columns.map((column) => column.text(row)).concat(row.state).join(" ").toLowerCase();
  if (!table.columns.some((column) => column.key === table.sort)) table.sort = "accuracy";
  const heads = table.columns.map((column) => make("th", { scope: "col", class: column.left ? "left" : "", "data-key": column.key },
    make("button", { type: "button", onclick: () => sortBy(column) }, column.head)));
  document.getElementById("heads").replaceChildren(make("tr", {}, ...heads));
  const only = document.getElementById("only");
  const names = [...page.present].map((k) => make("option", { value: k }, page.looks[k].name));
  only.replaceChildren(make("option", { value: "" }, "all"), ...names);
  document.getElementById("find").value = "";
  const fixed = Object.entries(one.common).map(([name, value]) => `${name} ${value}`);
  document.getElementById("runs-note").textContent = "Runs that differ by seed alone are one row, with the standard deviation over seeds. Bytes are those of a client in a round, uplink those of all clients during the training. "
    + (fixed.length ? `All runs: ${fixed.join(" · ")}.` : "");
  table.shown = STEP;
  drawTable();
}

function sortBy(column) {
  // Numbers start with the largest, names with the first.
  table.down = table.sort === column.key ? !table.down : !column.left && column.key !== "epsilon";
  table.sort = column.key;
  table.shown = STEP;
  drawTable();
}

function drawTable() {
  const wanted = document.getElementById("find").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const only = document.getElementById("only").value;
  const kept = table.rows.filter((row) => (only === "" || row.label === Number(only)) && wanted.every((word) => row.text.includes(word)));
  const column = table.columns.find((c) => c.key === table.sort);
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? (a === b ? 0 : a - b) : String(a).localeCompare(String(b)));
  kept.sort((a, b) => (table.down ? -1 : 1) * compare(column.value(a), column.value(b)));
  for (const head of document.querySelectorAll("#heads th")) {
    head.setAttribute("aria-sort", head.dataset.key !== table.sort ? "none" : table.down ? "descending" : "ascending");
  }
  document.getElementById("rows").replaceChildren(...kept.slice(0, table.shown).flatMap(drawRow));
  const noun = table.rows.length === 1 ? "row" : "rows";
  const part = kept.length > table.shown ? `, the first ${table.shown} shown` : "";
  document.getElementById("count").textContent = `${kept.length.toLocaleString("en")} of ${table.rows.length.toLocaleString("en")} ${noun}${part}`;
  const more = document.getElementById("more");
  more.hidden = kept.length <= table.shown;
  more.textContent = `Show ${Math.min(STEP, kept.length - table.shown)} more`;
}

function drawRow(row) {
  const { one, looks } = page;
  const open = make("button", { type: "button", class: "open", "aria-expanded": "false" }, swatch(looks[row.label]), looks[row.label].name);
  const cells = table.columns.map((column) => make("td", { class: column.left ? "left" : "" }, column.key === "label" ? open : column.text(row)));
  const line = make("tr", {}, ...cells);
  open.addEventListener("click", () => {
    const opened = open.getAttribute("aria-expanded") === "true";
    open.setAttribute("aria-expanded", String(!opened));
    if (opened) { line.nextElementSibling.remove(); return; }
    const settings = settingsOf(one, row).concat(Object.entries(one.common).map(([name, value]) => `${name} ${value}`));
    const said = [make("p", {}, make("strong", {}, "Guarantee: "), guaranteeWords(one, row)), make("p", {}, make("strong", {}, "Settings: "), settings.join(" · ") + ".")];
    const picture = page.data.mechanisms[row.mechanism];
    if (picture) said.push(make("p", {}, make("strong", {}, "Mechanism: "), picture.words));
    if (row.state) said.push(make("p", {}, make("strong", {}, "How it ended: "), row.state));
    line.after(make("tr", { class: "detail" }, make("td", { colspan: table.columns.length }, ...said)));
  });
  return [line];
}
