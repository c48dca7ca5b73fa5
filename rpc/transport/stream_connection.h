// StreamConnection: sends and receives frames over any ByteStream.
//
// Frames that are sent in the same turn of the loop are written together, with one gathering write. Reads
// fill a FrameReader; large attachments are read directly into their final memory. If the stream has
// BulkAccess, only the addresses of large attachments are sent, and a frame's `sent` runs when the other side
// has copied the attachments. send_ahead() puts a frame into the next write, before all queued frames except
// one that was written in part. It does not overtake bytes that the stream has accepted (in a socket's buffer
// or a ring).
//
// finish() writes all frames, closes this side's direction, and continues to read the stream until the other
// side has closed, too. Closing a socket with unread bytes would reset the connection, and bytes in flight
// would be lost.
#pragma once

#include <weft/rpc/transport/connection.h>

#include <optional>

namespace weft::rpc {

// The connection belongs to the loop of the stream.
WEFT_EXPORT std::shared_ptr<Connection> make_stream_connection(std::unique_ptr<ByteStream> stream,
                                                               std::shared_ptr<Loop> loop,
                                                               const ConnectionOptions& options);
// Over the stream of a transport: with TLS, if the options have credentials. dialled: the host that this
// side has dialled, which is empty for the path of a socket; nullopt if this side has accepted the stream.
WEFT_EXPORT std::shared_ptr<Connection> make_secured_connection(std::unique_ptr<ByteStream> stream,
                                                                const std::shared_ptr<Loop>& loop,
                                                                const ConnectionOptions& options,
                                                                const std::optional<std::string>& dialled);

}  // namespace weft::rpc
