// One function for each kind of figure: the page's data in, traces and layout for Plotly out.
"use strict";

const STATUSES = ["completed", "pruned", "out_of_memory", "diverged", "failed", "interrupted"];

// Texts of users are no markup, not even the little that Plotly understands.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const range = (count) => Array.from({ length: count }, (_, number) => number);

// The theme's colours as the browser resolves them.
function readColours() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const names = ["ink", "muted", "line", "surface", "accent", "best", "middle", "worst", ...STATUSES];
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

// The colour of a place between 0, the best, and 1, the worst.
function shade(colours, place) {
  const stops = [colours.best, colours.middle, colours.worst].map((text) => text.match(/[\d.]+/g).map(Number));
  const at = Math.min(1, Math.max(0, place)) * 2;
  const [from, to] = at < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
  return `rgb(${range(3).map((i) => Math.round(from[i] + (to[i] - from[i]) * (at < 1 ? at : at - 1)))})`;
}

function baseLayout(colours, extra) {
  const family = getComputedStyle(document.body).fontFamily;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
    font: { family, size: 12, color: colours.muted }, margin: { l: 56, r: 14, t: 10, b: 42 },
    hovermode: "closest", dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
    hoverlabel: { bgcolor: colours.surface, bordercolor: colours.muted, font: { family, color: colours.ink }, align: "left" },
    ...extra,
  };
}

function axis(colours, extra) {
  return {
    gridcolor: colours.line, linecolor: colours.line, zeroline: false, automargin: true, showline: false,
    ...extra,
  };
}

function tickAxis(colours, record, extra) {
  return axis(colours, {
    tickvals: record.ticks.map((tick) => tick[0]), ticktext: record.ticks.map((tick) => plain(tick[1])),
    range: [-0.06, 1.06], ...extra,
  });
}

// Points at the same place are moved apart a little, the same way each time.
const spread = (record, number, width) => (record.even ? (((number * 0.618034) % 1) - 0.5) * width : 0);

// Of a head above an axis, in CSS pixels: wide letters, so that it is not cut at the plot's edge.
const halfWidth = (label) => 4 * label.length;

const charts = {
  coordinates(data, colours, names) {
    const count = data.ids.length;
    const bins = Math.min(12, count);
    const jitter = count > 20 ? 0.035 : 0;
    const last = data.axes[data.axes.length - 1];
    const about = range(count).map((row) => `${plain(names[data.ids[row]])}<br>${plain(data.metric)} ${data.values[row]}`);
    const traces = range(bins).map((bin) => ({
      type: "scatter", mode: "lines", x: [], y: [], text: [], customdata: [], hovertemplate: "%{text}<extra></extra>",
      line: { width: bin === 0 && count <= 100 ? 2.4 : 1.2, color: shade(colours, bins > 1 ? bin / (bins - 1) : 0) },
      opacity: count > 200 ? (bin === 0 ? 0.85 : 0.45) : bin === 0 ? 1 : 0.75,
    }));
    const order = range(count).sort((a, b) => data.values[a] - data.values[b]);
    order.forEach((row, rank) => {
      const trace = traces[Math.floor((rank * bins) / count)];
      data.axes.forEach((each, number) => {
        const place = each.places[row];
        trace.x.push(number);
        trace.y.push(place === null ? null : place + (each === last ? 0 : spread(each, row + number, jitter)));
        trace.text.push(about[row]);
        trace.customdata.push(data.ids[row]);
      });
      for (const key of ["x", "y", "text", "customdata"]) trace[key].push(null);
    });
    const labels = data.axes.flatMap((each, number) => each.ticks.map((tick) => ({
      x: number, y: tick[0], text: plain(tick[1]), showarrow: false, xanchor: "right", xshift: -5,
      font: { size: 11, color: colours.ink }, bgcolor: colours.surface, borderpad: 1, opacity: 0.88,
    })));
    return [traces.reverse(), baseLayout(colours, {
      margin: { l: Math.max(52, halfWidth(data.axes[0].label)), r: Math.max(18, halfWidth(last.label)), t: 34, b: 12 },
      dragmode: false, annotations: labels,
      xaxis: axis(colours, {
        side: "top", tickvals: range(data.axes.length), ticktext: data.axes.map((each) => `<b>${plain(each.label)}</b>`),
        range: [-0.08, data.axes.length - 0.95], fixedrange: true, tickfont: { color: colours.ink, size: 12 }, showgrid: false, tickangle: 0,
      }),
      yaxis: { visible: false, range: [-0.06, 1.06], fixedrange: true },
      shapes: range(data.axes.length).map((number) => ({
        type: "line", x0: number, x1: number, y0: -0.03, y1: 1.03, line: { color: colours.muted, width: 1 }, layer: "below",
      })),
    })];
  },

  // Its points are those of the parallel coordinates; where they are means, the single trials are fainter.
  against(data, colours, names, whole) {
    const rows = range(whole.ids.length);
    const [x, y] = [whole.axes[data.axis], whole.axes[whole.axes.length - 1]];
    const points = {
      type: "scatter", mode: "markers",
      x: rows.map((row) => (x.places[row] === null ? null : x.places[row] + spread(x, row, rows.length > 20 ? 0.09 : 0.03))),
      y: y.places, customdata: whole.ids,
      text: rows.map((row) => `${plain(names[whole.ids[row]])}<br>${plain(whole.metric)} ${whole.values[row]}`),
      hovertemplate: "%{text}<extra></extra>",
      marker: { size: rows.length > 200 ? 5 : 8, opacity: rows.length > 200 ? 0.55 : 0.85, color: colours.completed },
    };
    const trials = {
      type: "scatter", mode: "markers", x: data.trials.map((each) => each[0]), y: data.trials.map((each) => each[1]),
      customdata: data.trials.map((each) => each[2]),
      text: data.trials.map((each) => `${plain(names[each[2]])}<br>${each[3]}`), hovertemplate: "%{text}<extra></extra>",
      marker: { size: 5, opacity: 0.4, color: colours.completed },
    };
    const medians = {
      type: "scatter", mode: "lines+markers", hoverinfo: "skip", x: data.medians.map((each) => each[0]), y: data.medians.map((each) => each[1]),
      line: { color: colours.ink, width: 1.5 }, marker: { symbol: "line-ew-open", size: 16, line: { width: 2.5, color: colours.ink } },
    };
    return [[...(data.trials.length ? [trials] : []), points, ...(data.medians.length ? [medians] : [])], baseLayout(colours, {
      margin: { l: 50, r: 10, t: 8, b: 30 }, dragmode: false,
      xaxis: tickAxis(colours, x, { fixedrange: true, showgrid: false }),
      yaxis: tickAxis(colours, y, { fixedrange: true, title: { text: plain(whole.metric), font: { size: 12 }, standoff: 10 } }),
    })];
  },

  curves(data, colours, names) {
    const best = data.curves.filter((each) => each.best);
    const drawn = [...data.curves.filter((each) => !each.best), ...best.slice().reverse()];
    const traces = drawn.map((each) => {
      const rank = best.indexOf(each);
      const name = plain(names[each.id] ?? each.id);
      return {
        type: "scatter", mode: each.points.length > 1 && !each.best ? "lines" : "lines+markers", name,
        x: each.points.map((point) => point[0]), y: each.points.map((point) => point[1]), customdata: each.points.map(() => each.id),
        line: { width: each.best ? 2.4 : 1.1, color: each.best ? shade(colours, rank / 6) : colours.muted }, marker: { size: each.best ? 8 : 5, symbol: ["circle", "square", "diamond", "triangle-up", "cross"][rank] },
        opacity: each.best ? 1 : 0.42, showlegend: each.best, legendrank: rank,
        hovertemplate: `${name}<br>epoch %{x}: %{y}<extra></extra>`,
      };
    });
    const pad = (data.high - data.low || 1) * 0.05;
    const most = Math.max(...data.curves.flatMap((each) => each.points.map((point) => point[0])));
    return [traces, baseLayout(colours, {
      showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: colours.ink } },
      margin: { l: 56, r: 14, t: 36, b: 42 },
      xaxis: axis(colours, { title: { text: "epoch" }, showgrid: false, ...(most <= 12 ? { dtick: 1 } : {}) }),
      yaxis: axis(colours, { title: { text: plain(data.metric) }, range: [data.low - pad, data.high + pad] }),
    })];
  },

  estimates(data, colours, names) {
    const most = Math.max(...data.estimated, ...data.peak) * 1.06;
    const least = Math.min(...data.estimated, ...data.peak);
    const low = least > most / 3 ? least * 0.94 : 0;
    const rows = range(data.ids.length);
    return [[
      { type: "scatter", mode: "lines", x: [low, most], y: [low, most], hoverinfo: "skip", line: { color: colours.muted, width: 1.5, dash: "dash" } },
      {
        type: "scatter", mode: "markers", x: data.estimated, y: data.peak, customdata: data.ids,
        text: rows.map((row) => `${plain(names[data.ids[row]])}<br>estimated ${data.estimated[row]} GB, peak ${data.peak[row]} GB`),
        hovertemplate: "%{text}<extra></extra>",
        marker: {
          size: rows.length > 200 ? 6 : 9, opacity: 0.8,
          color: rows.map((row) => (data.peak[row] > data.estimated[row] ? colours.out_of_memory : colours.completed)),
          symbol: rows.map((row) => (data.peak[row] > data.estimated[row] ? "triangle-up" : "circle")),
        },
      },
    ], baseLayout(colours, {
      xaxis: axis(colours, { title: { text: "estimated, GB" }, range: [low, most] }),
      yaxis: axis(colours, { title: { text: "measured peak, GB" }, range: [low, most] }),
      annotations: [{ x: low + 0.8 * (most - low), y: low + 0.8 * (most - low), text: "as estimated", showarrow: false, xanchor: "right", yanchor: "bottom", xshift: -6, font: { color: colours.muted } }],
    })];
  },

  timeline(data, colours, names) {
    return [[...timelineBars(data, colours, names), ...memorySteps(data, colours)], baseLayout(colours, {
      barmode: "overlay", showlegend: true, hovermode: "closest",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: colours.ink } },
      margin: { l: 56, r: 14, t: 40, b: 42 },
      xaxis: axis(colours, { title: { text: `time since the first trial was placed, ${data.unit}` }, anchor: "y2", showgrid: true, rangemode: "tozero" }),
      yaxis: axis(colours, { domain: [0.44, 1], range: [data.lanes - 0.4, -0.6], showgrid: false, showticklabels: false, fixedrange: true, title: { text: "trials" } }),
      yaxis2: axis(colours, { domain: [0, 0.37], title: { text: "GB" }, rangemode: "tozero", fixedrange: true, nticks: 5 }),
      shapes: data.pauses.map((pause) => ({ type: "line", x0: pause[0], x1: pause[0], y0: 0, y1: 1, yref: "paper", line: { color: colours.muted, dash: "dot", width: 1.5 } })),
      annotations: [
        ...data.pauses.map((pause) => ({ x: pause[0], y: 0.4, yref: "paper", text: `paused ${plain(pause[1])}`, showarrow: false, font: { size: 11 } })),
        ...(data.budget && !showsBudget(data) ? [{ x: 1, xref: "paper", xanchor: "right", y: 0.41, yref: "paper", showarrow: false, font: { size: 11 },
          text: `${data.budget.toFixed(1)} GB for trials, far above this scale` }] : []),
      ],
    })];
  },
};

// A pale bar for what was reserved, and in it a solid one, as high as the share of it that was used.
function timelineBars(data, colours, names) {
  const height = data.lanes > 24 ? 1 : 0.84;
  const edge = data.ids.length > 300 ? 0 : 1;
  return STATUSES.flatMap((status) => {
    const rows = range(data.ids.length).filter((row) => data.statuses[row] === status);
    if (!rows.length) return [];
    const text = rows.map((row) => `${plain(names[data.ids[row]])}, attempt ${data.attempts[row]}: ${status}<br>` +
      `${data.starts[row].toFixed(2)} to ${(data.starts[row] + data.lengths[row]).toFixed(2)} ${data.unit}<br>` +
      `reserved ${data.reserved[row].toFixed(2)} GB, ${data.used[row] === null ? "peak not known" : `used ${data.used[row].toFixed(2)} GB`}`);
    const common = {
      type: "bar", orientation: "h", x: rows.map((row) => data.lengths[row]), base: rows.map((row) => data.starts[row]),
      customdata: rows.map((row) => data.ids[row]), legendgroup: status, name: status.replace(/_/g, " "),
    };
    const shares = rows.map((row) => (data.used[row] === null || !data.reserved[row] ? 0 : Math.min(1, data.used[row] / data.reserved[row])));
    const shape = rows.map((row) => (data.attempts[row] > 1 ? "/" : ""));
    return [
      {
        ...common, y: rows.map((row) => data.lane[row]), width: height, text, textposition: "none", hovertemplate: "%{text}<extra></extra>",
        marker: { color: transparent(colours[status], 0.28), line: { color: colours[status], width: edge },
          pattern: { shape, fgcolor: colours[status], bgcolor: transparent(colours[status], 0.28), size: 6, solidity: 0.35 } },
        showlegend: false,
      },
      {
        ...common, y: rows.map((row, number) => data.lane[row] + (height * (1 - shares[number])) / 2), width: shares.map((share) => height * share),
        hoverinfo: "skip", showlegend: true,
        marker: { color: colours[status], line: { width: 0 }, pattern: { shape, fgcolor: colours.surface, bgcolor: colours[status], size: 6, solidity: 0.25 } },
      },
    ];
  });
}

// A budget that is many times what was ever reserved would flatten everything else.
const showsBudget = (data) => data.budget && data.budget < 4 * Math.max(...data.memory.map((step) => step[1]));

function memorySteps(data, colours) {
  const times = data.memory.map((step) => step[0]);
  const common = { type: "scatter", mode: "lines", x: times, yaxis: "y2", hovertemplate: "%{y:.2f} GB<extra>%{fullData.name}</extra>" };
  const traces = [
    { ...common, y: data.memory.map((step) => step[1]), name: "reserved", fill: "tozeroy", fillcolor: transparent(colours.accent, 0.2), line: { shape: "hv", width: 1, color: colours.accent } },
    { ...common, y: data.memory.map((step) => step[2]), name: "used (peaks)", fill: "tozeroy", fillcolor: transparent(colours.accent, 0.75), line: { shape: "hv", width: 0, color: colours.accent } },
  ];
  if (showsBudget(data)) {
    traces.push({ ...common, x: [times[0], times[times.length - 1]], y: [data.budget, data.budget], name: "for trials", line: { dash: "dash", width: 1.5, color: colours.ink } });
  }
  return traces;
}

const transparent = (colour, share) => colour.replace("rgb(", "rgba(").replace(")", `, ${share})`);
