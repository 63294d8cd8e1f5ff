"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  table.caption.append("Select a heading to sort.");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const ascending = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const number = (row) => Number(row.cells[column].dataset.value ?? NaN);
      const text = (row) => row.cells[column].textContent;
      const blankLast = (row) => Number.isNaN(number(row)) && head.classList.contains("number");
      const order = (a, b) => {
        if (blankLast(a) !== blankLast(b)) return blankLast(a) ? 1 : -1;
        const by = number(a) - number(b);
        const result = Number.isNaN(by) ? text(a).localeCompare(text(b), "en", { numeric: true }) : by;
        return ascending ? result : -result;
      };
      for (const row of body.rows) row.classList.remove("new");
      body.append(...[...body.rows].sort(order));
    });
  });
}
