#include <weft/rpc/wire/message.h>

#include <weft/rpc/wire/internal/capnp_access.h>

#include <cstring>

namespace weft::rpc {
namespace {

using detail::checked;

constexpr unsigned max_addresses = 256;  // of one Hello
constexpr unsigned max_address_bytes = 1024;
// The maximum bytes of the addresses in a hello of this side, and of the reason in its goodbye. The rest is
// omitted, because such a frame has a header of at most Prefix::max_control_header bytes.
constexpr std::size_t max_hello_addresses = 8 * 1024;
constexpr std::size_t max_goodbye_reason = 4 * 1024;

kj::StringPtr pointer(const std::string& text) { return {text.c_str(), text.size()}; }
std::string text(capnp::Text::Reader reader) { return {reader.begin(), reader.size()}; }

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "bad frame: " + what);
}

capnp::ReaderOptions reader_options(std::size_t header_bytes, const Limits& limits) {
  capnp::ReaderOptions options;
  // A message may be traversed several times (scanned, then decoded), but pointers that share targets must
  // not inflate it.
  options.traversalLimitInWords = header_bytes / 8 * 16 + 1024;
  options.nestingLimit = static_cast<int>(limits.nesting);
  return options;
}

kj::ArrayPtr<const capnp::word> words(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const capnp::word*>(bytes.data()), bytes.size() / 8};
}

// A payload that is too large is omitted; the error itself is delivered.
std::shared_ptr<const ErrorPayload> payload_of(schema::Failure::Reader failure) {
  const auto type = failure.getPayloadType();
  const auto bytes = failure.getPayload();
  if (type.size() == 0 || type.size() + bytes.size() > max_error_payload) return nullptr;
  return std::make_shared<const ErrorPayload>(
      ErrorPayload{text(type), {reinterpret_cast<const char*>(bytes.begin()), bytes.size()}});
}

// The kinds of frames by the kind of their header, in the order of message.capnp. The header of a ping is
// also that of the other kinds without contents.
constexpr FrameKind kinds_of_headers[] = {FrameKind::ping,   FrameKind::hello,  FrameKind::request,
                                          FrameKind::reply,  FrameKind::cancel, FrameKind::goodbye,
                                          FrameKind::credit, FrameKind{},  // unusedLane
                                          FrameKind::resume};
static_assert(kinds_of_headers[schema::Header::RESUME] == FrameKind::resume);

void check_kind(schema::Header::Reader header, const Prefix& prefix) {
  const std::size_t which = header.which();
  const FrameKind kind = which < std::size(kinds_of_headers) ? kinds_of_headers[which] : FrameKind{};
  if (kind == FrameKind{}) refuse("a header of unknown kind " + std::to_string(which));
  if (kind == prefix.kind) return;
  if (kind == FrameKind::ping && (prefix.kind == FrameKind::pong || prefix.kind == FrameKind::lane ||
                                  prefix.kind == FrameKind::received))
    return;
  refuse("a header of kind " + std::to_string(static_cast<int>(kind)) + ", and a prefix of kind " +
         std::to_string(static_cast<int>(prefix.kind)));
}

// The sizes of the attachments, checked against the prefix. Checks the kind of the header, too.
std::vector<std::uint64_t> attachment_sizes(schema::Header::Reader header, const Prefix& prefix,
                                            const Limits& limits) {
  check_kind(header, prefix);
  const auto table = header.getAttachments();
  if (table.size() > limits.attachments)
    throw Error(ErrorKind::resource_exhausted, "a frame of " + std::to_string(table.size()) +
                                                   " attachments, and the limit of this agent is " +
                                                   std::to_string(limits.attachments) +
                                                   " (AgentOptions::limits)");
  std::vector<std::uint64_t> sizes;
  sizes.reserve(table.size());
  std::uint64_t body = 0;
  for (const std::uint64_t size : table) {
    if (size > prefix.body_bytes)
      refuse("an attachment of " + std::to_string(size) + " bytes in a body of " +
             std::to_string(prefix.body_bytes));
    body += padded(size);
    if (body > prefix.body_bytes) break;
    sizes.push_back(size);
  }
  if (body != prefix.body_bytes)
    refuse("attachments of " + std::to_string(body) + " bytes in a body of " +
           std::to_string(prefix.body_bytes));
  return sizes;
}

// part: the request or reply of the message.
template <class Part>
void put_sections(OutgoingMessage::Content& content, Part& part) {
  if (content.sections.empty()) return;
  auto sections = part.initSections(static_cast<unsigned>(content.sections.size()));
  for (unsigned i = 0; i < sections.size(); ++i) {
    auto& pending = content.sections[i];
    sections[i].setKey(pointer(pending.key));
    sections[i].setRequired(pending.required);
    sections[i].adoptValue(kj::mv(pending.value));
  }
}

}  // namespace

std::vector<std::uint64_t> check_header(const Prefix& prefix,
                                        std::span<const std::byte, Prefix::size> prefix_bytes,
                                        std::span<const std::byte> header, const Limits& limits) {
  if (header.empty() || header.size() != std::size_t{prefix.header_words} * 8)
    refuse("a header of " + std::to_string(header.size()) + " bytes, expected " +
           std::to_string(prefix.header_words * std::uint64_t{8}));
  if (frame_checksum(prefix_bytes, header) != prefix.checksum) refuse("the checksum does not match");
  // Check the segment table before Cap'n Proto trusts it: the count minus 1, then the words of each segment,
  // padded to a whole word.
  std::uint32_t count;
  std::memcpy(&count, header.data(), sizeof count);
  if (count >= limits.segments)
    refuse("a header of " + std::to_string(std::uint64_t{count} + 1) + " segments, expected at most " +
           std::to_string(limits.segments));
  ++count;
  const std::uint64_t table_words = (count + 2) / 2;
  if (table_words * 8 > header.size())
    refuse("a segment table of " + std::to_string(table_words * 8) + " bytes in a header of " +
           std::to_string(header.size()));
  std::uint64_t total = table_words;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t size;
    std::memcpy(&size, header.data() + 4 * (i + 1), sizeof size);
    total += size;
  }
  if (total * 8 != header.size())
    refuse("segments of " + std::to_string(total * 8) + " bytes in a header of " +
           std::to_string(header.size()));

  if (prefix.body_bytes == 0) return {};  // no memory to allocate; IncomingMessage reads the header anyway
  return checked([&] {
    capnp::FlatArrayMessageReader reader(words(header), reader_options(header.size(), limits));
    return attachment_sizes(reader.getRoot<schema::Header>(), prefix, limits);
  });
}

OutgoingMessage::OutgoingMessage() : content_([] { return Content(); }) {}
OutgoingMessage::~OutgoingMessage() = default;

std::unique_ptr<OutgoingMessage> OutgoingMessage::request(std::size_t arguments) {
  std::unique_ptr<OutgoingMessage> message(new OutgoingMessage);
  auto& content = *message->content_;
  content.request = content.header.initRequest();
  content.arguments = content.request.initArguments(static_cast<unsigned>(arguments));
  return message;
}

std::unique_ptr<OutgoingMessage> OutgoingMessage::reply() {
  std::unique_ptr<OutgoingMessage> message(new OutgoingMessage);
  auto& content = *message->content_;
  content.reply = content.header.initReply();
  content.result = content.reply.initValue();
  message->is_reply_ = true;
  return message;
}

OutboundFrame OutgoingMessage::hello(const HelloInfo& info) {
  OutgoingMessage message;
  auto hello = message.content_->header.initHello();
  hello.setVersionMin(info.version_min);
  hello.setVersionMax(info.version_max);
  hello.setFeatures(info.features);
  hello.setName(pointer(info.name));
  hello.setIncarnation(info.incarnation);
  unsigned addresses_sent = 0;
  for (std::size_t bytes = 0; addresses_sent < info.addresses.size(); ++addresses_sent)
    if (bytes += info.addresses[addresses_sent].size() + 16; bytes > max_hello_addresses) break;
  auto addresses = hello.initAddresses(addresses_sent);
  for (unsigned i = 0; i < addresses.size(); ++i) addresses.set(i, pointer(info.addresses[i]));
  hello.setMostCalls(info.max_calls);
  hello.setMostBytes(info.max_bytes);
  hello.setMostHeader(info.max_header);
  hello.setMostBody(info.max_body);
  hello.setMostAttachments(info.max_attachments);
  hello.setLanes(info.lanes);
  hello.setLaneKey(info.lane_key);
  hello.setHost(info.process.host);
  hello.setProcess(info.process.number);
  hello.setStarted(info.process.started);
  hello.setNetwork(info.process.network);
  hello.setMostReplies(info.max_replies);
  return message.seal(FrameKind::hello, 0, 0);
}

OutboundFrame OutgoingMessage::goodbye(std::optional<Error> reason) {
  OutgoingMessage message;
  auto goodbye = message.content_->header.initGoodbye();
  if (reason) {
    goodbye.setKind(static_cast<std::uint16_t>(reason->kind()));
    goodbye.setMessage(std::string(reason->what()).substr(0, max_goodbye_reason));
  }
  return message.seal(FrameKind::goodbye, 0, 0);
}

OutboundFrame OutgoingMessage::failure(std::uint64_t call_id, const FailureInfo& info) {
  OutgoingMessage message;
  auto failure = message.content_->header.initReply().initError();
  failure.setKind(static_cast<std::uint16_t>(info.kind));
  failure.setMessage(pointer(info.message));
  failure.setWorker(pointer(info.worker));
  failure.setMethod(pointer(info.method));
  failure.setType(pointer(info.type));
  failure.setNotRun(info.not_run);
  if (info.payload != nullptr) {
    failure.setPayloadType(pointer(info.payload->type));
    failure.setPayload(
        {reinterpret_cast<const kj::byte*>(info.payload->bytes.data()), info.payload->bytes.size()});
  }
  return message.seal(FrameKind::reply, call_id, 0);
}

OutboundFrame OutgoingMessage::plain(FrameKind kind, std::uint64_t id) {
  OutgoingMessage message;
  if (kind == FrameKind::cancel) message.content_->header.setCancel();
  return message.seal(kind, id, 0);
}

OutboundFrame OutgoingMessage::credit(const CreditInfo& info) {
  OutgoingMessage message;
  auto credit = message.content_->header.initCredit();
  credit.setCalls(info.calls);
  credit.setBytes(info.bytes);
  return message.seal(FrameKind::credit, 0, 0);
}

OutboundFrame OutgoingMessage::resume(const ResumeInfo& info) {
  OutgoingMessage message;
  auto resume = message.content_->header.initResume();
  resume.setSession(info.session);
  resume.setEpoch(info.epoch);
  resume.setAccepted(info.accepted);
  resume.setIsNew(info.is_new);
  return message.seal(FrameKind::resume, 0, 0);
}

std::unique_ptr<OutgoingMessage> OutgoingMessage::again(const OutboundFrame& sealed) {
  std::unique_ptr<OutgoingMessage> message(new OutgoingMessage);
  auto& content = *message->content_;
  capnp::ReaderOptions own;  // for a message that this agent has written
  own.traversalLimitInWords = ~std::uint64_t{0};
  own.nestingLimit = 1 << 16;
  capnp::FlatArrayMessageReader reader(words(sealed.head.bytes().subspan(Prefix::size)), own);
  content.builder.setRoot(reader.getRoot<schema::Header>());
  content.header = content.builder.getRoot<schema::Header>();
  content.request = content.header.getRequest();
  content.arguments = content.request.getArguments();
  message->attachments_ = sealed.attachments;
  for (const Buffer& attachment : sealed.attachments) message->attached_bytes_ += attachment.size();
  return message;
}

ValueWriter OutgoingMessage::argument(std::size_t i) {
  return detail::ValueAccess::writer(content_->arguments[static_cast<unsigned>(i)], *this);
}
ValueWriter OutgoingMessage::result() { return detail::ValueAccess::writer(content_->result, *this); }
ValueWriter OutgoingMessage::section(std::string_view key, bool required) {
  auto& section = content_->sections.emplace_back(Content::PendingSection{
      std::string(key), required, content_->builder.getOrphanage().newOrphan<schema::Value>()});
  return detail::ValueAccess::writer(section.value.get(), *this);
}
std::uint32_t OutgoingMessage::attach(Buffer bytes) {
  attached_bytes_ += bytes.size();
  attachments_.push_back(std::move(bytes));
  return static_cast<std::uint32_t>(attachments_.size() - 1);
}

std::uint64_t OutgoingMessage::header_bytes() {
  return content_->builder.sizeInWords() * sizeof(capnp::word);
}

OutboundFrame OutgoingMessage::seal_request(const RequestInfo& info, std::uint64_t call_id,
                                            std::uint16_t flags) {
  auto& request = content_->request;
  request.setMethod(info.method);
  request.setSignature(info.signature);
  request.setTimeout(info.timeout_ns);
  request.setAttempt(info.attempt);
  request.setAccepted(info.accepted);
  put_sections(*content_, request);
  return seal(FrameKind::request, call_id, flags);
}

OutboundFrame OutgoingMessage::seal_reply(std::uint64_t call_id) {
  put_sections(*content_, content_->reply);
  return seal(FrameKind::reply, call_id, 0);
}

OutboundFrame OutgoingMessage::seal(FrameKind kind, std::uint64_t call_id, std::uint16_t flags) {
  Prefix prefix;
  prefix.kind = kind;
  prefix.flags = flags;
  prefix.call_id = call_id;
  if (!attachments_.empty()) {
    auto sizes = content_->header.initAttachments(static_cast<unsigned>(attachments_.size()));
    for (unsigned i = 0; i < sizes.size(); ++i) {
      sizes.set(i, attachments_[i].size());
      prefix.body_bytes += padded(attachments_[i].size());
    }
  }
  OutboundFrame frame;
  frame.head = content_->builder.seal();
  const std::span<std::byte> header = frame.head.bytes().subspan(Prefix::size);
  prefix.header_words = static_cast<std::uint32_t>(header.size() / sizeof(capnp::word));

  const PrefixBytes prefix_bytes = frame.head.bytes().first<Prefix::size>();
  encode(prefix, prefix_bytes);
  prefix.checksum = frame_checksum(prefix_bytes, header);
  encode(prefix, prefix_bytes);
  frame.attachments = std::move(attachments_);
  return frame;
}

IncomingMessage::Content::Content(InboundFrame&& f, const Limits& limits)
    : frame(std::move(f)),
      reader(words(frame.header.bytes()), reader_options(frame.header.size(), limits)),
      header(reader.getRoot<schema::Header>()) {
  if (frame.prefix.body_bytes == 0)  // not checked by check_header
    frame.attachments.resize(attachment_sizes(header, frame.prefix, limits).size());
  if (header.isRequest()) {
    request = header.getRequest();
    arguments = sized(request.getArguments());
    sections = sized(request.getSections());
  } else if (header.isReply()) {
    reply = header.getReply();
    sections = sized(reply.getSections());
  }
}

IncomingMessage::IncomingMessage(InboundFrame frame, const Limits& limits)
    : content_([&] { return checked([&] { return Content(std::move(frame), limits); }); }) {}
IncomingMessage::~IncomingMessage() = default;

const Prefix& IncomingMessage::prefix() const { return content_->frame.prefix; }

HelloInfo IncomingMessage::hello() const {
  return checked([&] {
    const auto hello = content_->header.getHello();
    if (hello.getName().size() > max_name_bytes)
      refuse("a Hello with a name of " + std::to_string(hello.getName().size()) +
             " bytes, expected at most " + std::to_string(max_name_bytes));
    HelloInfo info{hello.getVersionMin(),
                   hello.getVersionMax(),
                   hello.getFeatures(),
                   text(hello.getName()),
                   hello.getIncarnation(),
                   {},
                   hello.getMostCalls(),
                   hello.getMostBytes(),
                   hello.getMostHeader(),
                   hello.getMostBody(),
                   hello.getMostAttachments(),
                   hello.getLanes(),
                   hello.getLaneKey(),
                   {hello.getHost(), hello.getProcess(), hello.getStarted(), hello.getNetwork()},
                   hello.getMostReplies()};
    const auto addresses = hello.getAddresses();
    if (addresses.size() > max_addresses)
      refuse("a Hello of " + std::to_string(addresses.size()) + " addresses, expected at most " +
             std::to_string(max_addresses));
    for (const auto address : addresses) {
      if (address.size() > max_address_bytes)
        refuse("a Hello with an address of " + std::to_string(address.size()) + " bytes, expected at most " +
               std::to_string(max_address_bytes));
      info.addresses.push_back(text(address));
    }
    return info;
  });
}

RequestInfo IncomingMessage::request() const {
  const auto& request = content_->request;
  return {request.getMethod(), request.getSignature(), request.getTimeout(), request.getAttempt(),
          request.getAccepted()};
}

std::optional<Error> IncomingMessage::goodbye() const {
  return checked([&]() -> std::optional<Error> {
    const auto goodbye = content_->header.getGoodbye();
    if (goodbye.getKind() == 0) return std::nullopt;
    return Error(error_kind(goodbye.getKind()), text(goodbye.getMessage()));
  });
}

CreditInfo IncomingMessage::credit() const {
  return checked([&] {
    const auto credit = content_->header.getCredit();
    return CreditInfo{credit.getCalls(), credit.getBytes()};
  });
}

ResumeInfo IncomingMessage::resume() const {
  return checked([&] {
    const auto resume = content_->header.getResume();
    return ResumeInfo{resume.getSession(), resume.getEpoch(), resume.getAccepted(), resume.getIsNew()};
  });
}

std::size_t IncomingMessage::argument_count() const { return content_->arguments.size(); }

ValueReader IncomingMessage::argument(std::size_t i) {
  if (i >= content_->arguments.size())
    refuse("argument " + std::to_string(i) + " does not exist: the request has " +
           std::to_string(content_->arguments.size()) + " arguments");
  return detail::ValueAccess::reader(content_->arguments[static_cast<unsigned>(i)], *this);
}

std::optional<FailureInfo> IncomingMessage::failure() const {
  return checked([&]() -> std::optional<FailureInfo> {
    const auto& reply = content_->reply;
    if (!reply.isError()) return std::nullopt;
    const auto error = reply.getError();
    return FailureInfo{error_kind(error.getKind()),
                       text(error.getMessage()),
                       text(error.getWorker()),
                       text(error.getMethod()),
                       text(error.getType()),
                       error.getNotRun(),
                       payload_of(error)};
  });
}

ValueReader IncomingMessage::result() {
  return checked([&] { return detail::ValueAccess::reader(content_->reply.getValue(), *this); });
}

bool IncomingMessage::has_sections() const { return content_->sections.size() != 0; }

std::optional<ValueReader> IncomingMessage::section(std::string_view key) {
  return checked([&]() -> std::optional<ValueReader> {
    for (const auto section : content_->sections) {
      const auto name = section.getKey();
      if (std::string_view(name.begin(), name.size()) == key)
        return detail::ValueAccess::reader(section.getValue(), *this);
    }
    return std::nullopt;
  });
}

std::optional<std::string> IncomingMessage::unknown_required(
    UniqueFunction<bool(std::string_view)> known) const {
  return checked([&]() -> std::optional<std::string> {
    for (const auto section : content_->sections) {
      const auto name = section.getKey();
      if (section.getRequired() && !known({name.begin(), name.size()})) return text(name);
    }
    return std::nullopt;
  });
}

std::size_t IncomingMessage::attachment_count() const { return content_->frame.attachments.size(); }

const Buffer& IncomingMessage::attachment(std::uint32_t index) const {
  const auto& attachments = content_->frame.attachments;
  if (index >= attachments.size())
    refuse("attachment " + std::to_string(index) + " does not exist: the frame has " +
           std::to_string(attachments.size()) + " attachments");
  return attachments[index];
}

}  // namespace weft::rpc
