// Draws the charts it is told, and again whenever it is told new ones, in place: the nodes stay, so nothing
// flickers. A zoom (drag) holds for all charts and through every update until it is undone.
"use strict";

const board = document.getElementById("board");
const drawn = new Map(); // key → {figure, plot, title, undo, told, live}
let zoom = null;
let following = false; // while one chart's zoom is carried over to the others

const CONFIG = { displayModeBar: false, doubleClick: false, scrollZoom: false };

// A chart also changes its width where the window does not: when another one comes beside it. Plotly's own
// "responsive" listens to the window alone (plotly.js 4.1, plot_api).
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const drawnWidth = target._fullLayout && target._fullLayout.width;
    if (drawnWidth && contentRect.width && Math.abs(drawnWidth - contentRect.width) > 1) {
      Plotly.Plots.resize(target);
    }
  }
});

function tell(type, message) {
  window.parent.postMessage({ isStreamlitMessage: true, type, ...message }, "*");
}

function fit() {
  tell("streamlit:setFrameHeight", { height: Math.ceil(board.getBoundingClientRect().height) + 4 });
}

function add(key) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const title = document.createElement("span");
  const undo = document.createElement("button");
  const plot = document.createElement("div");
  undo.type = "button";
  undo.hidden = true;
  undo.addEventListener("click", () => setZoom(null));
  caption.append(title, undo);
  figure.append(caption, plot);
  figure.dataset.chart = key;
  board.append(figure);
  const chart = { figure, title, undo, plot, told: null, live: null };
  drawn.set(key, chart);
  return chart;
}

async function draw(chart, told, words) {
  chart.title.textContent = told.title;
  chart.figure.setAttribute("aria-label", told.title);
  chart.undo.textContent = words.undo_zoom;
  if (chart.told === told.figure) return;
  const isNew = chart.told === null;
  chart.told = told.figure;
  const { data, layout } = JSON.parse(told.figure);
  chart.live = layout.xaxis.range;
  if (zoom) layout.xaxis.range = zoom.slice();
  await Plotly.react(chart.plot, data, layout, CONFIG);
  if (isNew) {
    widths.observe(chart.plot); // tells its width at once, should that have changed while it was drawn
    chart.plot.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      if (!following && from !== undefined) setZoom([from, change["xaxis.range[1]"]]);
    });
    chart.plot.on("plotly_doubleclick", () => setZoom(null));
    // The name above an incident's band opens it. The time tells two clicks on the same name apart.
    chart.plot.on("plotly_clickannotation", ({ annotation }) => {
      if (annotation.name) {
        tell("streamlit:setComponentValue", {
          value: { incident: annotation.name, at: Date.now() },
          dataType: "json",
        });
      }
    });
  }
}

async function setZoom(range) {
  zoom = range;
  following = true;
  try {
    for (const chart of drawn.values()) {
      chart.undo.hidden = zoom === null;
      if (chart.live === null) continue; // not drawn yet; it will be with this zoom
      await Plotly.relayout(chart.plot, { "xaxis.range": (zoom || chart.live).slice() });
    }
  } finally {
    following = false;
  }
}

async function render(charts, words, theme) {
  const look = document.documentElement.style;
  if (theme && theme.textColor) look.setProperty("--text", theme.textColor);
  if (theme && theme.backgroundColor) look.setProperty("--page", theme.backgroundColor);
  const keys = new Set(charts.map((chart) => chart.key));
  for (const [key, chart] of drawn) {
    if (keys.has(key)) continue;
    widths.unobserve(chart.plot);
    Plotly.purge(chart.plot);
    chart.figure.remove();
    drawn.delete(key);
  }
  // All places before the first drawing: Plotly takes the width that it finds, and the last of an odd number
  // of charts has the whole row. A chart whose first number came late takes its place; nothing else moves.
  charts.forEach(({ key, wide }, index) => {
    const { figure } = drawn.get(key) || add(key);
    figure.classList.toggle("wide", wide);
    if (board.children[index] !== figure) board.insertBefore(figure, board.children[index]);
  });
  for (const told of charts) {
    await draw(drawn.get(told.key), told, words);
  }
  fit();
}

// One drawing after the other: an update that comes while one is drawn waits, and only the newest waits.
let next = null;
let drawing = false;
async function update(args, theme) {
  next = [args.charts, args.words, theme];
  if (drawing) return;
  drawing = true;
  try {
    while (next) {
      const [charts, words, look] = next;
      next = null;
      await render(charts, words, look);
    }
  } finally {
    drawing = false;
  }
}

window.addEventListener("message", (event) => {
  if (event.source === window.parent && event.data.type === "streamlit:render") {
    update(event.data.args, event.data.theme);
  }
});
window.addEventListener("resize", fit);
tell("streamlit:componentReady", { apiVersion: 1 });
