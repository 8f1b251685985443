"""A self-contained HTML page from plain data: sections, pictures and a map. It knows neither runs nor audits."""
