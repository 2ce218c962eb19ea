"""A store that speaks Google Cloud Storage's JSON protocol, for the clients that training uses: gcsfs and TensorStore.

Objects are in the memory of its process, whole or not at all, and there is no rename: what a client that is killed has
sent of an object is forgotten. Run as `python -m tests.google_storage`, it prints its port, and ends with its stdin.
A number after it is the seconds that every answer waits, as over a network.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import sys
import threading
import time
import urllib.parse
from typing import Any

Query = dict[str, str]
API, UPLOAD, DOWNLOAD = '/storage/v1/b/', '/upload/storage/v1/b/', '/download/storage/v1/b/'


class Store:
  """Objects by (bucket, name), each with a generation that grows with every write."""

  def __init__(self) -> None:
    self.objects: dict[tuple[str, str], tuple[bytes, int, float]] = {}
    self.uploads: dict[str, tuple[str, str, Query, bytearray]] = {}
    self.generation = 0
    self.lock = threading.Lock()

  def put(self, bucket: str, name: str, content: bytes, query: Query) -> dict[str, Any] | None:
    """Writes an object; None where it is not of the generation that the query asks for (0: not there)."""
    with self.lock:
      if not self.fits(bucket, name, query):
        return None
      self.generation += 1
      self.objects[bucket, name] = (content, self.generation, time.time())
      return self.about(bucket, name)

  def fits(self, bucket: str, name: str, query: Query) -> bool:
    here = self.objects.get((bucket, name), (b'', 0, 0.0))[1]
    return int(query.get('ifGenerationMatch', here)) == here

  def about(self, bucket: str, name: str) -> dict[str, Any]:
    content, generation, when = self.objects[bucket, name]
    stamp = time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(when))
    return {
      'kind': 'storage#object', 'id': f'{bucket}/{name}/{generation}', 'bucket': bucket, 'name': name,
      'generation': str(generation), 'metageneration': '1', 'size': str(len(content)), 'timeCreated': stamp,
      'updated': stamp, 'contentType': 'application/octet-stream', 'storageClass': 'STANDARD',
      'md5Hash': base64.b64encode(hashlib.md5(content).digest()).decode(), 'etag': str(generation),
    }  # fmt: skip

  def listing(self, bucket: str, query: Query) -> dict[str, Any]:
    prefix, cut = query.get('prefix', ''), query.get('delimiter')
    items, prefixes = [], set()
    with self.lock:
      for other, name in sorted(self.objects):
        before_end = not query.get('endOffset') or name < query['endOffset']
        if other == bucket and name.startswith(prefix) and name >= query.get('startOffset', '') and before_end:
          rest = name[len(prefix) :]
          if cut and cut in rest and not (rest == cut and query.get('includeTrailingDelimiter')):
            prefixes.add(prefix + rest.partition(cut)[0] + cut)
          else:
            items.append(self.about(bucket, name))
    return {'kind': 'storage#objects', 'items': items, 'prefixes': sorted(prefixes)}


class Server(http.server.ThreadingHTTPServer):
  """Answers each client in a thread, and says nothing of clients that are killed or leave before the answer."""

  daemon_threads = True

  def handle_error(self, request: Any, client_address: Any) -> None:
    pass


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers one request."""

  protocol_version = 'HTTP/1.1'
  store: Store
  latency = 0.0  # seconds

  def log_message(self, *arguments: Any) -> None:
    pass

  def do_GET(self) -> None:
    self.answer()

  def do_POST(self) -> None:
    self.answer()

  def do_PUT(self) -> None:
    self.answer()

  def do_DELETE(self) -> None:
    self.answer()

  def body(self) -> bytes:
    if self.headers.get('Transfer-Encoding') != 'chunked':
      return self.rfile.read(int(self.headers.get('Content-Length') or 0))
    content = b''
    while size := int(self.rfile.readline().split(b';')[0], 16):
      content += self.rfile.read(size)
      self.rfile.readline()
    self.rfile.readline()
    return content

  def answer(self) -> None:
    body = self.body()
    time.sleep(self.latency)
    status, content, headers = self.ask(
      self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body
    )
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    with contextlib.suppress(ConnectionError):  # TensorStore hangs up on answers that it no longer needs
      self.wfile.write(content)

  def ask(self, method: str, address: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
    split = urllib.parse.urlsplit(address)
    query = dict(urllib.parse.parse_qsl(split.query))
    if split.path.startswith('/batch'):
      return self.batch(headers, body)
    found = re.fullmatch(r'/(?:upload/|download/)?storage/v1/b/([^/]+)(?:/o(?:/(.*))?)?', split.path)
    if not found:
      return as_json(404, {'error': {'code': 404, 'message': f'no such address {split.path}'}})
    bucket, name = found[1], urllib.parse.unquote(found[2] or '')
    if split.path.startswith(UPLOAD):
      return self.upload(method, bucket, query, headers, body)
    if '/o' not in split.path[len(API) :]:
      return as_json(200, {'kind': 'storage#bucket', 'name': bucket, 'location': 'HERE', 'locationType': 'region'})
    if not name:
      return as_json(200, self.store.listing(bucket, query))
    copied = re.fullmatch(r'(.*)/(?:rewriteTo|copyTo)/b/([^/]+)/o/(.*)', found[2])
    if copied:
      source, target = urllib.parse.unquote(copied[1]), urllib.parse.unquote(copied[3])
      if (bucket, source) not in self.store.objects:
        return missing(source)
      about = self.store.put(copied[2], target, self.store.objects[bucket, source][0], {})
      return as_json(200, {'kind': 'storage#rewriteResponse', 'done': True, 'resource': about})
    if (bucket, name) not in self.store.objects:
      return missing(name)
    if method == 'DELETE':
      with self.store.lock:
        self.store.objects.pop((bucket, name), None)
      return 204, b'', {}
    if query.get('alt') == 'media' or split.path.startswith(DOWNLOAD):
      return self.media(bucket, name, query, headers)
    return as_json(200, self.store.about(bucket, name))

  def media(self, bucket: str, name: str, query: Query, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
    content, generation, _ = self.store.objects[bucket, name]
    if query.get('ifGenerationNotMatch') == str(generation):
      return 304, b'', {}
    about = {'x-goog-generation': str(generation), 'ETag': str(generation)}
    wanted = re.fullmatch(r'bytes=(\d*)-(\d*)', headers.get('range', ''))
    if not wanted:
      return 200, content, about
    start = int(wanted[1]) if wanted[1] else max(0, len(content) - int(wanted[2]))
    stop = min(len(content), int(wanted[2]) + 1) if wanted[1] and wanted[2] else len(content)
    if start >= len(content):
      return 416, b'', about
    about['Content-Range'] = f'bytes {start}-{stop - 1}/{len(content)}'
    return 206, content[start:stop], about

  def upload(
    self, method: str, bucket: str, query: Query, headers: dict[str, str], body: bytes
  ) -> tuple[int, bytes, dict[str, str]]:
    kind = query.get('uploadType')
    if method == 'PUT' or 'upload_id' in query:
      return self.resume(query['upload_id'], headers, body)
    if kind == 'resumable':
      name = query.get('name') or json.loads(body)['name']
      number = f'{len(self.store.uploads)}'
      self.store.uploads[number] = (bucket, name, query, bytearray())
      where = f'http://{headers["host"]}{UPLOAD}{bucket}/o?uploadType=resumable&upload_id={number}'
      return 200, b'{}', {'Location': where}
    name = query.get('name', '')
    if kind == 'multipart':
      mark = re.search(r'boundary="?([^";]+)"?', headers['content-type'])
      assert mark is not None
      first, body = (part.split(b'\n\n', 1)[1] if b'\r\n\r\n' not in part else part.split(b'\r\n\r\n', 1)[1]
                     for part in body.split(b'--' + mark[1].encode())[1:3])  # fmt: skip
      body = body[:-2] if body.endswith(b'\r\n') else body.removesuffix(b'\n')
      name = json.loads(first)['name']
    return self.written(self.store.put(bucket, name, body, query))

  def resume(self, number: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
    bucket, name, query, content = self.store.uploads[number]
    content += body
    total = headers.get('content-range', '').rpartition('/')[2]
    if total == '*' or (total and int(total) > len(content)):
      return 308, b'', {'Range': f'bytes=0-{len(content) - 1}'} if content else {}
    return self.written(self.store.put(bucket, name, bytes(content), query))

  def written(self, about: dict[str, Any] | None) -> tuple[int, bytes, dict[str, str]]:
    if about is None:
      return as_json(412, {'error': {'code': 412, 'message': 'conditionNotMet'}})
    return as_json(200, about)

  def batch(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
    mark = re.search(r'boundary="?([^";]+)"?', headers['content-type'])
    assert mark is not None
    answers = []
    for part in body.split(b'--' + mark[1].encode())[1:-1]:
      asked = re.search(rb'(DELETE|GET) (\S+) HTTP', part)
      number = re.search(rb'Content-ID: *<?([^>\r\n]+)>?', part)
      assert asked is not None
      status, content, _ = self.ask(asked[1].decode(), asked[2].decode(), {}, b'')
      label = number[1].decode() if number else ''
      answers.append(
        f'--b\r\nContent-Type: application/http\r\nContent-ID: <response-{label}>\r\n\r\n'
        f'HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n{content.decode()}\r\n'
      )
    return 200, (''.join(answers) + '--b--').encode(), {'Content-Type': 'multipart/mixed; boundary=b'}


def as_json(status: int, value: Any) -> tuple[int, bytes, dict[str, str]]:
  return status, json.dumps(value).encode(), {'Content-Type': 'application/json; charset=UTF-8'}


def missing(name: str) -> tuple[int, bytes, dict[str, str]]:
  return as_json(404, {'error': {'code': 404, 'message': f'No such object: {name}'}})


def main() -> None:
  Handler.store = Store()
  Handler.latency = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
  server = Server(('127.0.0.1', 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  print(server.server_address[1], flush=True)
  sys.stdin.read()


if __name__ == '__main__':
  main()
