"""The studies behind Antipodes: five papers' tables and figures, and studies of its own. Not part of the package."""
