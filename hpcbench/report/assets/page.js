"use strict";
// What a table's tools do: find text, choose a value of a column, hide columns, copy as CSV.
(function () {
  function all(root, selector) { return Array.prototype.slice.call(root.querySelectorAll(selector)); }
  function rowsOf(table) { return all(table, "tbody:not(.heading) > tr"); }

  function filter(figure) {
    var table = figure.querySelector("table"), text = figure.querySelector(".find").value.toLowerCase();
    var chosen = all(figure, "select").filter(function (one) { return one.value; });
    var shown = 0;
    rowsOf(table).forEach(function (row) {
      var fits = !text || row.textContent.toLowerCase().indexOf(text) >= 0;
      fits = fits && chosen.every(function (one) {
        return row.cells[+one.dataset.column].textContent === one.value;
      });
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    all(table, "tbody.heading").forEach(function (heading) {
      var body = heading.nextElementSibling;
      heading.hidden = !!body && all(body, "tr").every(function (row) { return row.hidden; });
    });
    figure.querySelector(".said").textContent = text || chosen.length ? shown + " rows" : "";
  }

  function showColumns(figure) {
    var hidden = {};
    all(figure, ".columns input").forEach(function (box) { hidden[box.dataset.column] = !box.checked; });
    all(figure, "thead tr, tbody:not(.heading) > tr").forEach(function (row) {
      all(row, "th, td").forEach(function (cell, at) { cell.hidden = !!hidden[at]; });
    });
  }

  // Of a table that is wider than the page, hide details until it fits, on a narrow page then what
  // nobody compares; "columns" shows them again.
  function fit(figure) {
    var around = figure.querySelector(".scroll"), hidden = 0;
    var boxes = all(figure, ".columns input[data-detail]").reverse();
    if (window.matchMedia("(max-width: 48rem)").matches) {
      boxes = boxes.concat(all(figure, ".columns input[data-spare]:not([data-detail])"));
    }
    boxes.forEach(function (box) {
      if (around.scrollWidth > around.clientWidth + 1) {
        box.checked = false;
        hidden += 1;
        showColumns(figure);
      }
    });
    if (hidden) {
      figure.querySelector(".columns summary").textContent = "columns (" + hidden + " hidden)";
      figure.querySelector(".tools").hidden = false;
    }
  }

  function quoted(text) {
    var one = text.trim();
    if (/^[=+\-@\t\r]/.test(one) && isNaN(+one)) { one = "'" + one; }  // no formula of a spreadsheet
    return /[",\n]/.test(one) ? '"' + one.replace(/"/g, '""') + '"' : one;
  }

  function csv(table) {
    var titles = all(table, "thead th"), heading = "";
    var seen = titles.map(function (cell) { return !cell.hidden; });
    function line(texts) { return texts.filter(function (_, at) { return seen[at]; }).map(quoted).join(","); }
    var lines = [["group"].map(quoted) + "," + line(titles.map(function (cell) {
      return cell.textContent.replace(/\s+/g, " "); }))];
    all(table, "tbody").forEach(function (body) {
      if (body.className === "heading") { heading = body.textContent.trim(); return; }
      all(body, "tr").forEach(function (row) {
        if (row.hidden) { return; }
        lines.push(quoted(heading) + "," + line(all(row, "td").map(function (cell) { return cell.textContent; })));
      });
    });
    return lines.join("\n") + "\n";
  }

  function copy(figure) {
    var text = csv(figure.querySelector("table")), said = figure.querySelector(".said");
    function done() { said.textContent = "copied"; }
    function byHand() {
      var area = document.createElement("textarea");
      area.value = text;
      document.body.appendChild(area);
      area.select();
      said.textContent = document.execCommand("copy") ? "copied" : "this browser does not allow it";
      area.remove();
    }
    if (navigator.clipboard) { navigator.clipboard.writeText(text).then(done, byHand); } else { byHand(); }
  }

  all(document, "figure.table").forEach(function (figure) {
    figure.querySelector(".tools").hidden = rowsOf(figure).length < 4;
    figure.querySelector(".find").addEventListener("input", function () { filter(figure); });
    all(figure, "select").forEach(function (one) {
      one.addEventListener("change", function () { filter(figure); });
    });
    all(figure, ".columns input").forEach(function (box) {
      box.addEventListener("change", function () { showColumns(figure); });
    });
    figure.querySelector(".copy").addEventListener("click", function () { copy(figure); });
    fit(figure);
    if (figure.parentNode.tagName === "DETAILS") {
      figure.parentNode.addEventListener("toggle", function () { fit(figure); });
    }
  });

  // Zoom: the same points, drawn by uPlot; drag to zoom in, double click to see all again.
  var colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00"];
  function plot(place, panel) {
    var series = [{ label: panel.x_label }].concat(panel.series.map(function (one, at) {
      return { label: one.label, stroke: one.colour || colours[at % colours.length], width: 1.5, spanGaps: true,
        points: { show: true } };
    }));
    var width = Math.max(320, Math.min(1100, place.clientWidth - 20));
    function scale(base) { return base ? { time: false, distr: 3, log: base } : { time: false }; }
    return new uPlot({ width: width, height: 380, title: panel.title, series: series,
      scales: { x: scale(panel.x_log), y: scale(panel.y_log) },
      axes: [{ label: panel.x_label }, { label: panel.y_label }] },
      [panel.x].concat(panel.series.map(function (one) { return one.values; })), place);
  }
  all(document, "button.zoom").forEach(function (button) {
    var figure = button.parentNode, place = figure.querySelector(".zoomed"), drawn = false;
    button.hidden = false;
    button.addEventListener("click", function () {
      place.hidden = !place.hidden;
      button.setAttribute("aria-expanded", String(!place.hidden));
      button.textContent = place.hidden ? "zoom" : "close the zoom (drag to zoom in, double click for all)";
      if (!drawn && !place.hidden) {
        JSON.parse(figure.querySelector(".zoom-data").textContent).forEach(function (panel) { plot(place, panel); });
        drawn = true;
      }
    });
  });
})();
