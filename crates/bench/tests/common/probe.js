"use strict";
// Added to a copy of the report by a test: writes down what a reader would see.
window.addEventListener("load", () => {
  const size = (element) => {
    const box = element.getBoundingClientRect();
    return [box.width, box.height];
  };
  const look = (figure) => ({
    id: figure.id,
    size: size(figure.querySelector(".scroll > svg")),
    described: ["title", "desc"].every((name) => figure.querySelector(`svg > ${name}`)?.textContent.length > 10),
    lines: [...figure.querySelectorAll("polyline.line")].map((line) => ({
      mode: [...line.classList].find((name) => name.startsWith("m-")),
      size: size(line),
      stroke: getComputedStyle(line).stroke,
    })),
    points: [...figure.querySelectorAll(".point")].filter((point) => point.querySelector("title").textContent && size(point)[0] > 0).length,
    names: [...figure.querySelectorAll("text.name")].map((name) => name.textContent),
  });
  const charts = [...document.querySelectorAll(".charts figure.chart")].map(look);
  const agreement = [...document.querySelectorAll(".comparison figure.chart")].map(look);
  const table = document.querySelector("table.sortable");
  const average = [...table.querySelectorAll("thead th")].findIndex((head) => head.textContent.startsWith("avg"));
  table.querySelectorAll("thead th button")[average].click();
  const sorted = [...table.tBodies[0].rows].map((row) => Number(row.cells[average].dataset.value));
  const probe = document.createElement("pre");
  probe.id = "probe";
  probe.textContent = JSON.stringify({
    charts,
    agreement,
    sorted,
    requests: performance.getEntriesByType("resource").length,
    violations: window.violations,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  });
  document.body.append(probe);
});
