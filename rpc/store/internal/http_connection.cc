#include <weft/rpc/store/internal/http_connection.h>

#include <asio/buffer.hpp>
#include <asio/connect.hpp>
#include <asio/write.hpp>

namespace weft::rpc::detail {

HttpConnection::HttpConnection(asio::io_context& context, std::size_t server)
    : resolver_(context), socket_(context), server_(server) {}

void HttpConnection::connect(const std::string& host, const std::string& port, Connected done) {
  resolver_.async_resolve(
      host, port,
      [self = shared_from_this(), done = std::move(done)](
          const asio::error_code& unresolved, asio::ip::tcp::resolver::results_type found) mutable {
        if (self->closed_) return;
        if (unresolved) return done(unresolved);
        asio::async_connect(
            self->socket_, found,
            [self, done = std::move(done)](asio::error_code refused, const asio::ip::tcp::endpoint&) mutable {
              if (self->closed_) return;
              if (!refused) {
                asio::error_code ignored;
                self->socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
                self->open_ = true;
                self->read();
              }
              done(refused);
            });
      });
}

void HttpConnection::exchange(std::string request, Part part, Exchanged done) {
  request_ = std::move(request);
  part_ = std::move(part);
  exchanged_ = std::move(done);
  reader_.emplace([this](std::string_view bytes) {
    if (!closed_) part_(reader_->status(), bytes);
  });
  asio::async_write(socket_, asio::buffer(request_),
                    [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      if (error) self->end(Error(ErrorKind::unavailable, error.message()));
                    });
}

void HttpConnection::read() {
  socket_.async_read_some(asio::buffer(buffer_),
                          [self = shared_from_this()](const asio::error_code& error, std::size_t size) {
                            if (self->closed_) return;
                            if (!error) {
                              self->take({self->buffer_.data(), size});
                              if (self->open_) self->read();
                              return;
                            }
                            if (error == asio::error::eof && self->reader_) {
                              try {
                                self->open_ = false;
                                self->reader_->connection_ended();
                                return self->finish(self->reader_->status());
                              } catch (const Error& cut_short) {
                                return self->end(cut_short);
                              }
                            }
                            self->end(Error(ErrorKind::unavailable, error.message()));
                          });
}

void HttpConnection::take(std::string_view bytes) {
  if (!reader_) return end(Error(ErrorKind::protocol_error, "bytes that nobody asked for"));
  std::optional<Error> wrong;
  try {
    const std::size_t taken = reader_->push(bytes);
    if (closed_ || !reader_->complete()) return;
    if (taken != bytes.size() || !reader_->keeps_connection()) open_ = false;
  } catch (const Error& error) {
    wrong = error;
  }
  if (wrong) return end(*wrong);
  finish(reader_->status());
}

void HttpConnection::end(const Error& reason) {
  open_ = false;
  finish(std::make_exception_ptr(reason));
}

void HttpConnection::finish(Result<unsigned>&& result) {
  reader_.reset();
  if (!open_) {
    asio::error_code ignored;
    socket_.close(ignored);
  }
  part_ = nullptr;
  if (!exchanged_) return;
  Exchanged done = std::move(exchanged_);
  exchanged_ = nullptr;
  done(std::move(result));
}

void HttpConnection::close() {
  closed_ = true;
  open_ = false;
  resolver_.cancel();
  asio::error_code ignored;
  socket_.close(ignored);
  exchanged_ = nullptr;
}

}  // namespace weft::rpc::detail
