//! A plain HTTP/1.1 client over one blocking socket: just what a test needs to see each byte when it comes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longest wait for the next byte. On a starved machine an answer of a slow model may take this long to begin; what hangs
/// is ended sooner by the runner.
const PATIENCE: Duration = Duration::from_secs(1800);

/// An answer's head, and the way to its body.
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    /// Event text that was read and not taken yet.
    pending: String,
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// `data: {…}`
    Json(Value),
    /// `data: [DONE]`
    Done,
}

/// Sends a request with a JSON body (or none) to `http://HOST:PORT/v1`-like `base` and reads the head of its answer.
///
/// # Panics
/// Where the server cannot be reached or breaks the protocol.
pub fn send(method: &str, base: &str, path: &str, body: Option<&[u8]>) -> Answer {
    let stream = request(method, base, path, body);
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line");
    let status = line.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a header line");
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => break,
        }
    }
    Answer { status, headers, reader, pending: String::new() }
}

fn request(method: &str, base: &str, path: &str, body: Option<&[u8]>) -> TcpStream {
    let rest = base.strip_prefix("http://").expect("a base URL");
    let (host, prefix) =
        rest.split_once('/').map_or((rest, String::new()), |(host, prefix)| (host, format!("/{prefix}")));
    let at_root = ["/health", "/tokenize", "/detokenize"].contains(&path);
    let prefix = if at_root { String::new() } else { prefix };
    let mut stream = TcpStream::connect(host).expect("the gateway listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit can be set");
    let body = body.unwrap_or_default();
    let head = format!(
        "{method} {prefix}{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("the request goes out");
    stream
}

/// `GET`.
pub fn get(base: &str, path: &str) -> (u16, Value) {
    send("GET", base, path, None).json()
}

/// `POST` of JSON.
pub fn post(base: &str, path: &str, body: &Value) -> Answer {
    send("POST", base, path, Some(body.to_string().as_bytes()))
}

/// `POST` of JSON whose answer is not waited for; dropping the connection is how a client goes away.
pub fn post_only(base: &str, path: &str, body: &Value) -> TcpStream {
    request("POST", base, path, Some(body.to_string().as_bytes()))
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The whole body as JSON.
    ///
    /// # Panics
    /// Where it is none.
    pub fn json(mut self) -> (u16, Value) {
        let mut text = Vec::new();
        while let Some(piece) = self.piece() {
            text.extend(piece);
        }
        let value = serde_json::from_slice(&text);
        (self.status, value.unwrap_or_else(|e| panic!("no JSON ({e}): {}", String::from_utf8_lossy(&text))))
    }

    /// The next server-sent event; `None` at the end of the stream.
    ///
    /// # Panics
    /// Where the stream is no event stream.
    pub fn event(&mut self) -> Option<Event> {
        // The gateway writes whole events, one or more to a chunk, but nothing promises it: collect lines.
        loop {
            let line = self.body_line()?;
            match line.trim_end() {
                "" => {}
                // Names of events stand in their data as well.
                other if other.starts_with(':') || other.starts_with("event: ") => {}
                "data: [DONE]" => return Some(Event::Done),
                data => {
                    let json = data.strip_prefix("data: ").unwrap_or_else(|| panic!("no event line: {data}"));
                    return Some(Event::Json(serde_json::from_str(json).expect("events are JSON")));
                }
            }
        }
    }

    /// All remaining events.
    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.event()).collect()
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    }

    /// The next piece of the body; `None` at its end, be it proper or a broken connection.
    fn piece(&mut self) -> Option<Vec<u8>> {
        let len = if self.is_chunked() {
            let mut line = String::new();
            self.reader.read_line(&mut line).ok()?;
            usize::from_str_radix(line.trim(), 16).ok().filter(|len| *len > 0)?
        } else {
            let mut all = Vec::new();
            self.reader.read_to_end(&mut all).ok()?;
            return (!all.is_empty()).then_some(all);
        };
        let mut piece = vec![0; len + 2];
        self.reader.read_exact(&mut piece).ok()?;
        piece.truncate(len);
        Some(piece)
    }

    /// The next line of an event stream, without its end.
    fn body_line(&mut self) -> Option<String> {
        while !self.pending.contains('\n') {
            let piece = self.piece()?;
            self.pending += &String::from_utf8(piece).expect("events are text");
        }
        let (line, rest) = self.pending.split_once('\n')?;
        let (line, rest) = (line.to_owned(), rest.to_owned());
        self.pending = rest;
        Some(line)
    }
}

impl Event {
    /// The text of a chat completion chunk's delta; empty for anything else.
    pub fn text(&self) -> &str {
        match self {
            Self::Json(value) => value["choices"][0]["delta"]["content"].as_str().unwrap_or_default(),
            Self::Done => "",
        }
    }
}
