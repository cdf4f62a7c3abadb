"""Files become blocks of parsed rows: formats, fields, values, ids, order."""
