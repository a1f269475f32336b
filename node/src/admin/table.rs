//! Plain tables: columns as wide as their widest cell, two spaces apart, no frames.

/// `rows` under `head`, aligned; one line each, without trailing spaces.
pub fn render(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut out = line(head.to_vec());
    for row in rows {
        out += &line(row.iter().map(String::as_str).collect());
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["alpha".to_owned(), "1".to_owned()], vec!["b".to_owned(), "22".to_owned()]];
        assert_eq!(super::render(&["NAME", "N"], &rows), "NAME   N\nalpha  1\nb      22\n");
    }
}
