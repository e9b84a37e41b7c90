// What leaves a client: the table of probabilities as a heat map, and the curves of bias and variance.

function drawMechanism() {
  const { one, looks, best, data } = page;
  const drawn = shownLabels().filter((k) => best.get(k) && data.mechanisms[best.get(k).mechanism]);
  document.getElementById("mechanism-card").hidden = !page.rows.some((row) => row.mechanism >= 0);
  const choice = document.getElementById("mechanism-choice");
  if (!drawn.includes(page.pictured)) {
    page.pictured = drawn.find((k) => data.mechanisms[best.get(k).mechanism].table) ?? drawn[0];
  }
  choice.replaceChildren(...drawn.map((k) => make("button", {
    type: "button", "aria-pressed": String(k === page.pictured),
    onclick: () => { page.pictured = k; drawMechanism(); },
  }, looks[k].name)));
  const words = document.getElementById("mechanism-words");
  if (page.pictured === undefined) {
    words.textContent = "No mechanism within the target can be drawn.";
    for (const id of ["table-of-symbols", "bias", "variance"]) page.nothing(id, "");
    return;
  }
  const picture = data.mechanisms[best.get(page.pictured).mechanism];
  const coding = looks[page.pictured].mechanism === "sign" ? " A sign has no size; it is shown divided by its slope at zero, as a server would." : "";
  words.textContent = picture.words + coding;
  drawSymbols(document.getElementById("table-of-symbols"), picture.table);
  const series = (name) => drawn.map((k) => {
    const found = data.mechanisms[best.get(k).mechanism];
    return { look: looks[k], points: found.x.map((x, j) => ({ x, y: found[name][j], dev: 0, tell: null })) };
  });
  const spec = (name, words) => ({
    label: `Chart of the ${words} of a decoded coordinate over its value, a line per mechanism`,
    x: { label: "coordinate, in units of the clip", domain: [-1, 1], format: (v) => number(v), room: 48 },
    series: series(name), height: 240, left: 52, named: false, dotless: true, bars: false, thin: true, band: picture.typical,
  });
  const bias = spec("bias", "bias"), variance = spec("variance", "variance");
  const reach = Math.max(1e-3, ...bias.series.flatMap((s) => s.points.map((p) => Math.abs(p.y)))) * 1.1;
  const top = Math.max(...variance.series.flatMap((s) => s.points.map((p) => p.y))) * 1.1;
  drawChart(document.getElementById("bias"), { ...bias, y: { domain: [-reach, reach], format: (v) => number(v, 3) } });
  drawChart(document.getElementById("variance"), { ...variance, y: { domain: [0, top], format: (v) => number(v, 3) } });
  document.getElementById("mechanism-note").textContent =
    `Of the best setting of each mechanism within the target. A coordinate of a clipped update with ${one.dimension} parameters is mostly within the shaded band.`;
}

const probabilityShown = (p) => (p >= 0.0995 ? p.toFixed(2) : p >= 0.00095 ? p.toFixed(3) : p.toExponential(0)).replace(/^0\./, ".");

function drawSymbols(host, table) {
  if (!table) {
    host.replaceChildren(make("p", { class: "note" }, "It sends numbers, not symbols: there is no table."));
    return;
  }
  const dense = table.values.length > 8, many = table.values.length > 4;
  const short = (v) => number(v, many ? 2 : 3);
  const top = Math.max(...table.probabilities.flat());
  const heads = make("tr", {}, make("th", { scope: "col" }, "input"), ...table.values.map((v, k) =>
    make("th", { scope: "col", title: `decodes to ${v}` }, !dense || k % 4 === 0 ? short(v) : "")));
  const lines = table.inputs.map((input, i) => make("tr", {}, make("th", { scope: "row" }, short(input)),
    ...table.probabilities[i].map((p, j) => {
      const cell = make("td", { title: `P(${number(table.values[j], 3)} | ${number(input, 3)}) = ${number(p)}` }, probabilityShown(p));
      // The square root, or all but the largest probabilities would look alike.
      const strength = Math.sqrt(p / top);
      cell.style.backgroundColor = `rgba(var(--cell), ${(0.04 + 0.8 * strength).toFixed(3)})`;
      if (strength > 0.62 && document.documentElement.dataset.theme !== "dark") cell.style.color = "#fff";
      if (strength > 0.62 && document.documentElement.dataset.theme === "dark") cell.style.color = "#0b0e14";
      return cell;
    })));
  const part = table.levels > table.inputs.length || table.symbols > table.values.length;
  const size = `${table.levels} levels, ${table.symbols} symbols${part ? "; a part of them is shown" : ""}.`;
  host.replaceChildren(make("table", { class: `symbols${many ? " many" : ""}${dense ? " dense" : ""}` },
    make("caption", {}, `Rows: the coordinate a client has. Columns: the value its symbol decodes to. Both in units of the clip. ${size}`),
    make("thead", {}, heads), make("tbody", {}, ...lines.reverse())));
}
