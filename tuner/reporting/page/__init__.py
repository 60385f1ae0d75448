"""A study as one HTML page that works offline.

    files of a folder ──► RecordedStudy ──► figures, tables ──► sections ──► document

``sections.py`` has the page's content, ``tables.py`` its tables and ``parts.py`` pieces of HTML. ``document.py`` adds
styles and scripts, with plotly's, and writes the file. In the browser, ``page.js`` shows the figures and follows a
running study, ``table.js`` filters and ``vendor/`` sorts.
"""
