// For WEFT_ETCD=OFF: a store in etcd cannot be opened.
#include <weft/rpc/job/store/internal/http_client.h>

namespace weft::rpc::detail {

class CurlMulti {};
struct HttpClient::Call {};

std::string HttpAddress::text() const { return host + ":" + port; }

HttpClient::HttpClient(std::shared_ptr<Loop>, std::vector<HttpAddress>, HttpClientOptions) {
  throw Error(
      ErrorKind::invalid_argument,
      "a store in etcd: this weft was built without etcd, expected tcp://host:port or file:///path; a "
      "build with WEFT_ETCD=ON has etcd");
}
HttpClient::~HttpClient() = default;
HttpClient::CallId HttpClient::begin(HttpRequest, Part, Done) { return 0; }
void HttpClient::stop(CallId) {}
std::size_t HttpClient::server_of(CallId) const { return 0; }
void HttpClient::close() {}

}  // namespace weft::rpc::detail
