// Formulas that pymdownx.arithmatex marked; again after each page that is loaded.
const typeset = () =>
  document.querySelectorAll(".arithmatex").forEach((element) =>
    renderMathInElement(element, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
    }),
  );
document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", typeset) : typeset();
