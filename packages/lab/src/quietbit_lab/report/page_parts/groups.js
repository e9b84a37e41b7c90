// The table of accuracies by group, where nodes evaluated them privately.

function drawGroups() {
  const { one, looks } = page;
  document.getElementById("groups-card").hidden = !one.groups.length;
  if (!one.groups.length) return;
  document.getElementById("groups-note").textContent = "Estimated from randomised answers of nodes: 95 % of such intervals contain the truth. "
    + "Noise hides a small group first, and its interval is the widest; an average over all groups does not show this.";
  const heads = ["mechanism", "epsilon ≤", "round", "group", "accuracy", "95 % interval", "share of examples", "answers"];
  const left = (name) => (["mechanism", "group"].includes(name) ? "left" : "");
  document.getElementById("group-heads").replaceChildren(make("tr", {}, ...heads.map((name) => make("th", { scope: "col", class: left(name) }, name))));
  const rows = one.groups.flatMap((run) => run.groups.map((group) => {
    const cells = [
      looks[run.label].name,
      number(run.epsilon),
      String(run.round),
      group.name,
      group.accuracy === null ? "–" : percent(group.accuracy),
      `${percent(group.low)} to ${percent(group.high)}`,
      percent(group.share),
      run.answers.toLocaleString("en"),
    ];
    return make("tr", {}, ...cells.map((text, k) => make("td", { class: left(heads[k]) }, text)));
  }));
  document.getElementById("group-rows").replaceChildren(...rows);
}
