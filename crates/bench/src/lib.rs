//! Measures delivery modes: test beds, the mode x load matrix, statistics, tables and the HTML report.
