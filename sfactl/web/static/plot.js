// Plots, drawn by uPlot, which uplot.js has as it comes from its authors.

import { h } from "./dom.js";
import { count, date, hour, usd } from "./format.js";

let loading = null;
function library() {
  loading ||= new Promise((resolve, reject) => {
    const script = h("script", { src: new URL("./uplot.js", import.meta.url).href });
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => reject(new Error("uplot.js cannot be loaded"));
    document.head.append(script);
  });
  return loading;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A plot in an element, as wide as its place, and in the colours of the page. */
export class Plot {
  constructor(height, label) {
    this.place = h("div", { class: "plot", role: "img", "aria-label": label });
    this.height = height;
    this.drawn = null;
    new ResizeObserver(() => this.drawn && this.drawn.setSize({ width: this.place.clientWidth, height })).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.last && this.draw(...this.last));
  }

  async draw(options, data, label) {
    this.last = [options, data, label];
    if (label) this.place.setAttribute("aria-label", label);
    const uPlot = await library();
    if (this.last[1] !== data) return; // newer data came meanwhile
    const key = JSON.stringify([options(uPlot, colour).series.map((one) => one.label), colour("--ink")]);
    if (this.drawn && key === this.key) return this.drawn.setData(data);
    this.drawn?.destroy();
    this.key = key;
    const common = { width: this.place.clientWidth || 320, height: this.height, legend: { show: false }, cursor: { drag: { x: false, y: false } } };
    this.drawn = new uPlot({ ...common, ...options(uPlot, colour) }, data, this.place);
  }
}

function axes(paint, values, size = 46) {
  const common = { stroke: paint("--quiet"), grid: { stroke: paint("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui", labelFont: "12px system-ui" };
  return [
    { ...common, size: 30, grid: { show: false }, space: 64, values: (_, splits, ___, ____, step) => splits.map((at) => (step >= 86400 ? date(at) : hour(at, step < 60))) },
    { ...common, size, values: (_, splits) => splits.map(values) },
  ];
}

/** What was used over time, with a limit as a line. `points`: [time, amount]. */
export function overTime(points, limit, what) {
  const format = what === "USD" ? (value) => usd(value) : (value) => count(value);
  const data = [points.map((point) => point[0]), points.map((point) => point[1])];
  if (limit) data.push(points.map(() => limit));
  const options = (uPlot, paint) => ({
    scales: { x: { time: true }, y: { range: (_, __, most) => [0, Math.max(most, limit || 0) * 1.08 || 1] } },
    axes: axes(paint, format),
    series: [
      {},
      { label: what, stroke: paint("--accent"), width: 2, fill: paint("--tint"), paths: uPlot.paths.stepped({ align: 1 }), points: { show: points.length < 60, size: 5 } },
      ...(limit ? [{ label: "limit", stroke: paint("--alarm"), width: 1.5, dash: [6, 4], points: { show: false } }] : []),
    ],
  });
  const last = points.at(-1);
  return [options, data, `${what}: ${format(last ? last[1] : null)}${limit ? ` of ${format(limit)}` : ""}`];
}

/** Bars of days, stacked. `series`: {name, values}. */
export function stacked(days, series) {
  const sums = days.map(() => 0);
  const tops = series.map((one) => one.values.map((value, at) => (value === null ? null : (sums[at] += value))));
  // the highest first: those below are drawn over it
  const data = [days, ...tops.reverse()];
  const shades = series.map((one, at) => (one.name === "others" ? "--other" : `--s${at}`)).reverse();
  const most = Math.max(...sums, 0.01);
  const options = (uPlot, paint) => ({
    scales: { x: { time: true, range: () => [days[0] - 43200, days.at(-1) + 43200 + 1] }, y: { range: () => [0, most * 1.08] } },
    axes: ((found) => [{ ...found[0], splits: (plot) => days.filter((_, at) => (days.length - 1 - at) % Math.ceil(days.length / Math.max(2, Math.floor(plot.width / 72))) === 0), values: (_, splits) => splits.map(date) }, found[1]])(axes(paint, (value) => usd(value))),
    series: [
      {},
      ...shades.map((shade, at) => ({ label: `${series.length - at} ${shade}`, fill: paint(shade), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.72, 56], align: 0 }) })),
    ],
  });
  return [options, data];
}
