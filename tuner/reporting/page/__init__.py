"""A study as one HTML page that works offline.

    files of a folder ──► StudyView ──► figures, tables ──► sections ──► document

``sections.py`` has what the page shows, ``tables.py`` its tables and ``parts.py`` pieces of HTML; all that is pure.
``document.py`` puts styles and scripts to it, plotly's among them, and writes the file. Of the browser's part,
``page.js`` shows the figures and follows a study that runs, ``table.js`` filters, and ``vendor/`` sorts.
"""
