// Draws the plots, sorts the tables, hides builds. All data is in the page; nothing is fetched.
const specs = JSON.parse(document.getElementById("plots").textContent);
const hidden = new Set();

const config = {
  background: null,
  font: "system-ui, sans-serif",
  view: { stroke: null },
  axis: {
    labelColor: "var(--soft)", titleColor: "var(--soft)", gridColor: "var(--line)", domainColor: "var(--line)",
    tickColor: "var(--line)", labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 180,
  },
  header: { labelColor: "var(--ink)", labelFontSize: 13, labelFontWeight: 600, labelAnchor: "start", labelPadding: 6 },
  legend: { labelColor: "var(--ink)", titleColor: "var(--soft)", titleFontWeight: "normal", orient: "bottom", labelFontSize: 12, symbolBaseFillColor: "var(--ink)", symbolBaseStrokeColor: "var(--ink)" },
  text: { color: "var(--ink)" },
  facet: { spacing: 24 },
};

const GAP = 24;
const NAMES = 30; // to the right of a panel, for the names of its last points

// The room that the words on the left of a plot take.
function labels(spec, values) {
  const layer = (spec.layer ?? [spec])[0].encoding ?? {};
  const y = layer.y ?? spec.encoding?.y;
  if (y.type === "quantitative") return 48;
  return 36 + 7.2 * Math.max(4, ...values.map((row) => String(row[y.field]).length));
}

// A specification for the room there is, without the builds that are hidden.
function fitted(name, room) {
  const spec = structuredClone(specs[name]);
  const values = spec.data.values.filter((row) => !hidden.has(row.build));
  spec.data.values = values;
  const view = spec.spec ?? spec;
  const beside = labels(view, values);
  if (!spec.facet) {
    const loads = name === "heat" ? 60 * new Set(values.map((row) => row.load)).size : 150;
    spec.width = Math.max(room - beside, loads);
    return spec;
  }
  const panels = new Set(values.map((row) => row[spec.facet.field])).size || 1;
  const fitting = Math.floor((room + GAP) / (beside + 140 + GAP));
  spec.columns = Math.max(1, Math.min(spec.columns, panels, fitting));
  const named = view.layer?.some((layer) => layer.mark.type === "text") ? NAMES : 0;
  view.width = Math.max(110, Math.floor((room + GAP) / spec.columns) - beside - GAP - named);
  return spec;
}

async function draw(box) {
  const spec = fitted(box.dataset.plot, box.clientWidth);
  config.legend.columns = box.clientWidth < 500 ? 2 : undefined;
  const options = { ast: true, actions: false, renderer: "svg", config, logLevel: 1 };
  const { view } = await window.vegaEmbed(box, spec, options);
  box.dataset.drawn = String(spec.data.values.length);
  return view;
}

function drawAll() {
  return Promise.all([...document.querySelectorAll(".plot")].map(draw));
}

function compare(a, b) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
}

function sortBy(button) {
  const head = button.closest("th");
  const table = button.closest("table");
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const each of table.querySelectorAll("thead th")) each.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => {
    const cell = row.cells[Number(button.dataset.column)];
    return cell.dataset.sort ?? cell.textContent.trim();
  };
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => (key(a) === "" || key(b) === "" ? compare(key(a), key(b)) : (up ? 1 : -1) * compare(key(a), key(b))));
  table.tBodies[0].append(...rows);
}

function toggle(button) {
  const name = button.dataset.toggle;
  const show = hidden.has(name);
  if (show) hidden.delete(name); else hidden.add(name);
  button.setAttribute("aria-pressed", String(show));
  for (const row of document.querySelectorAll("[data-build]")) row.hidden = hidden.has(row.dataset.build);
  drawAll();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.column) sortBy(button);
  if (button?.dataset.toggle !== undefined) toggle(button);
});

let last = document.body.clientWidth;
let timer;
addEventListener("resize", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (document.body.clientWidth !== last) { last = document.body.clientWidth; drawAll(); }
  }, 150);
});
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});

drawAll().then(() => { document.documentElement.dataset.ready = "yes"; });
