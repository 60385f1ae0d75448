"""A study as one HTML page that works offline.

    files of a folder ──► StudyView ──► Figure … ──► page_html

``study.py`` reads the folder; ``axes.py``, ``coordinates.py``, ``curves.py``, ``timeline.py`` and ``estimates.py``
make figures of it, each with its finding in words, of trials or of means as ``means.py`` decides. ``best.py``,
``table.py``, ``configurations.py`` and ``parts.py`` make HTML, and ``document.py`` the page. All of that is pure. The
browser's part is in ``table.js``, ``charts.js`` and ``page.js``, which are written into the page.
"""
