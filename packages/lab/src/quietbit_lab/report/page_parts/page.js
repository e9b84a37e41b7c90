// The page: reads its data, keeps the few things a reader can choose, and draws again when one changes.

const page = { hidden: new Set(), whole: false, best: new Map(), pictured: undefined };

page.nothing = (id, words) => document.getElementById(id).replaceChildren(make("p", { class: "note" }, words));

function choose(index) {
  const { data } = page;
  page.one = data.comparisons[index];
  page.rows = page.one.rows.map((row) => Object.fromEntries(data.columns.map((name, k) => [name, row[k]])));
  page.present = new Set(page.rows.map((row) => row.label).sort((a, b) => a - b));
  page.hidden.clear();
  page.frontier = null;
  const found = page.rows.filter((row) => row.chosen && row.epsilon !== null).map((row) => row.epsilon);
  page.high = found.length ? found.reduce((a, b) => Math.max(a, b)) : 10;
  page.low = found.length ? found.reduce((a, b) => Math.min(a, b)) : 1;
  if (page.low === page.high) page.low = page.high / 2;
  document.querySelector(".control").hidden = !found.length;
  const scored = page.rows.some((row) => row.chosen);
  for (const id of ["frontier-card", "bytes-card"]) document.getElementById(id).hidden = !scored;
  document.getElementById("summary").textContent = page.one.summary;
  describe();
  legend();
  drawGroups();
  startTable();
  // A first target that means something, where the runs reach far beyond what anybody would call private.
  const first = page.high <= 25 ? page.high : Math.max(page.low, Math.min(page.high, 10));
  document.getElementById("target").value = (1000 * Math.log(first / page.low)) / Math.log(page.high / page.low);
  retarget();
}

function retarget() {
  const slider = document.getElementById("target");
  const share = Number(slider.value) / 1000;
  const between = page.low * (page.high / page.low) ** share;
  page.target = share >= 1 ? page.high : share <= 0 ? page.low : Number(between.toPrecision(3));
  slider.setAttribute("aria-valuetext", `epsilon ${number(page.target)}`);
  document.getElementById("target-value").textContent = `≤ ${number(page.target)}`;
  page.best.clear();
  for (const label of page.present) {
    const within = page.rows.filter((row) => row.label === label && row.chosen === 2 && (row.epsilon === null || row.epsilon <= page.target));
    if (within.length) page.best.set(label, within.reduce((a, b) => (b.accuracy > a.accuracy ? b : a)));
  }
  if (page.frontier) moveMarker(); else drawFrontier();
  answers();
  drawBytes();
  drawCurves();
  drawMechanism();
}

function draw() {
  hideTip();
  drawFrontier();
  retarget();
}

function answers() {
  const { one, looks, best } = page;
  document.getElementById("best-note").textContent =
    `Of one ${one.unit}, ${one.adjacency} adjacency, delta ${one.delta_words}: the most accurate setting whose epsilon is at most ${number(page.target)}. Chosen by test accuracy, which flatters every mechanism, the more the more settings of it were tried.`;
  document.getElementById("answers").replaceChildren(...shownLabels().map((label) => {
    const row = best.get(label);
    const item = make("li", {}, make("div", { class: "name" }, looks[label].name));
    item.style.setProperty("--hue", looks[label].hue);
    if (!row) {
      item.append(make("div", { class: "why" }, `No setting of it was run within epsilon ${number(page.target)}.`));
      return item;
    }
    const bound = row.epsilon === null ? "without privacy" : `epsilon ≤ ${number(row.epsilon)}`;
    const sent = row.bytes === null ? "" : `, ${bytesShown(row.bytes)} per client per round`;
    const settings = settingsOf(one, row).join(", ");
    item.append(
      make("div", { class: "number" }, percent(row.accuracy), " ", make("small", {}, spreadWords(row))),
      make("div", { class: "why" }, `${bound} after ${row.rounds} rounds${sent}${settings ? "; " + settings : ""}.`),
    );
    return item;
  }));
}

function legend() {
  document.getElementById("legend").replaceChildren(...[...page.present].map((label) => make("button", {
    type: "button", "aria-pressed": String(!page.hidden.has(label)),
    onclick: (event) => {
      if (page.hidden.has(label)) page.hidden.delete(label); else page.hidden.add(label);
      event.currentTarget.setAttribute("aria-pressed", String(!page.hidden.has(label)));
      draw();
    },
  }, swatch(page.looks[label]), page.looks[label].name)));
}

function describe() {
  const { one, data } = page;
  const seeds = page.rows.map((row) => row.seeds);
  const [few, many] = [Math.min(...seeds), Math.max(...seeds)];
  const over = many === 1 ? "one seed each, so there are no error bars" : `bars are one standard deviation over ${few === many ? many : `${few} to ${many}`} seeds`;
  const words = {
    "frontier-note": `Trained on ${one.task}. Points to the left are more private; ${over}. Faint points are settings that another beats; points of equal epsilon stand side by side.`,
    "bytes-note": "The most accurate settings within the target epsilon, by what they cost the clients to send.",
    "curves-note": "Of the best setting of each mechanism within the target; mean over seeds, shaded by one standard deviation.",
  };
  for (const [id, text] of Object.entries(words)) document.getElementById(id).textContent = text;
  const terms = [...one.words];
  const trusted = Object.entries(one.trusts);
  const sentences = [...new Set(trusted.map(([, trust]) => trust.words))];
  for (const sentence of sentences) {
    const who = sentences.length > 1 ? ` So it is for ${trusted.filter(([, t]) => t.words === sentence).map(([k]) => data.labels[k].name).join("; ")}.` : "";
    terms.push(["Who may look (trust)", sentence + who]);
  }
  if (!trusted.length) terms.length = 0;
  if (page.rows.some((row) => row.epsilon === null && !one.trusts[row.label])) terms.push(["Without privacy", "Runs without noise have no guarantee at all; they show what the task allows."]);
  document.getElementById("guarantee").replaceChildren(...terms.flatMap(([term, sentence]) => [make("dt", {}, term), make("dd", {}, sentence)]));
  document.getElementById("seeded").hidden = !data.made.seeded;
}

function footer() {
  const { made } = page.data;
  const versions = Object.entries(made.versions).map(([name, found]) => `${name} ${found.join(", ")}`).join(" · ");
  const runs = `${made.runs.toLocaleString("en")} ${made.runs === 1 ? "run" : "runs"}`;
  document.getElementById("footer").replaceChildren(
    make("p", {}, `Made by ${made.by} with quietbit report from ${runs}. Everything is in this one file; it asks nothing of any network.`),
    make("p", {}, "Epsilons are certified upper bounds and are rounded up; accuracies are rounded to the nearest."),
    make("p", {}, versions ? `The runs used ${versions}.` : ""),
    make("p", {}, made.commits.length ? `Commit ${made.commits.map((c) => c.slice(0, 12) + (c.endsWith("+") ? " with changes" : "")).join(", ")}.` : ""),
  );
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  for (const [k, look] of page.looks.entries()) document.documentElement.style.setProperty(`--c${k}`, name === "dark" ? look.dark : look.light);
  document.getElementById("theme-name").textContent = name === "dark" ? "Light" : "Dark";
}

function remembered() { try { return localStorage.getItem("quietbit-theme"); } catch { return null; } }

function start() {
  page.data = JSON.parse(document.getElementById("data").textContent);
  page.looks = page.data.labels.map((look, k) => ({ ...look, hue: `var(--c${k})` }));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(remembered() || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", (event) => { if (!remembered()) { setTheme(event.matches ? "dark" : "light"); drawMechanism(); } });
  document.getElementById("theme").addEventListener("click", () => {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("quietbit-theme", name); } catch { /* a browser that keeps nothing still switches */ }
    setTheme(name);
    drawMechanism();
  });
  const several = page.data.comparisons.length > 1;
  const select = document.getElementById("comparison");
  document.getElementById("choose").hidden = !several;
  select.replaceChildren(...page.data.comparisons.map((one, k) => make("option", { value: k }, `${one.task} · one ${one.unit}, ${one.adjacency}, delta ${one.delta_words} · ${one.runs} runs`)));
  select.addEventListener("change", () => choose(Number(select.value)));
  document.getElementById("target").addEventListener("input", retarget);
  document.getElementById("find").addEventListener("input", () => { table.shown = STEP; drawTable(); });
  document.getElementById("only").addEventListener("change", () => { table.shown = STEP; drawTable(); });
  document.getElementById("more").addEventListener("click", () => { table.shown += STEP; drawTable(); });
  for (const [id, whole] of [["bytes-client", false], ["bytes-all", true]]) {
    document.getElementById(id).addEventListener("click", () => {
      page.whole = whole;
      document.getElementById("bytes-client").setAttribute("aria-pressed", String(!whole));
      document.getElementById("bytes-all").setAttribute("aria-pressed", String(whole));
      drawBytes();
    });
  }
  choose(0);
  footer();
  window.addEventListener("scroll", hideTip, { passive: true });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot")) hideTip(); });
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    requestAnimationFrame(draw);
  }).observe(document.body);
}

start();
