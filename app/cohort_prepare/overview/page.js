// The start of the standalone page, after the drawing modules.

const { title, rows, ...model } = JSON.parse(document.getElementById("data").textContent);
document.getElementById("title").textContent = document.title = title;
showGraphs(document.getElementById("place"), model, {}, rows);
