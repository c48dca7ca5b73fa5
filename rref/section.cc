#include <weft/rref/section.h>

#include <array>
#include <bit>

namespace weft::rref {
namespace {

using protocol::Handover;
using rpc::AgentId;

// A Handover is five packed integers: the ids, and 1 if it is settled. If its owner is not the receiver of
// the message, or its creator is not the sender, it is a list of three: the integers, the owner (nil: the
// receiver), and the creator (nil: the sender).
constexpr std::size_t integers = 5;

struct Ends {
  const AgentId& sender;
  const AgentId* receiver;  // null: not known for sure
};

void write_ids(rpc::ValueWriter writer, const Handover& handover) {
  const auto packed = [](std::uint64_t number) { return std::bit_cast<std::int64_t>(number); };
  writer.set_ints(std::array<std::int64_t, integers>{
      packed(handover.rref.origin), packed(handover.rref.number), packed(handover.fork.origin),
      packed(handover.fork.number), handover.settled ? 1 : 0});
}

void write(rpc::ValueWriter writer, const Handover& handover, const Ends& ends) {
  const bool owned = ends.receiver != nullptr && handover.owner == *ends.receiver;
  const bool created = handover.creator == ends.sender;
  if (owned && created) return write_ids(writer, handover);
  rpc::ListWriter list = writer.set_list(3);
  const auto agent = [](rpc::ValueWriter field, bool known, const AgentId& id) {
    known ? field.set_nil() : rpc::Codec<AgentId>::encode(field, id);
  };
  write_ids(list[0], handover);
  agent(list[1], owned, handover.owner);
  agent(list[2], created, handover.creator);
}

rpc::Error malformed(const std::string& why) {
  return rpc::Error(rpc::ErrorKind::invalid_argument, "malformed section of references: " + why);
}

Handover read_handover(const rpc::ValueReader& reader, const Ends& ends) {
  const bool list = reader.kind() == rpc::ValueKind::list;
  if (list && reader.size() != 3)
    throw malformed("a hand-over has " + std::to_string(reader.size()) + " parts, expected 3");
  const rpc::ValueReader ids = list ? reader.at(0) : reader;
  if (ids.size() != integers)
    throw malformed("a hand-over has " + std::to_string(ids.size()) + " integers, expected " +
                    std::to_string(integers));
  const auto number = [&](std::size_t i) { return std::bit_cast<std::uint64_t>(ids.int_at(i)); };
  const auto agent = [&](std::size_t i, const AgentId& known) {
    if (!list) return known;
    const rpc::ValueReader field = reader.at(i);
    return field.is_nil() ? known : rpc::Codec<AgentId>::decode(field);
  };
  return {{number(0), number(1)},
          {number(2), number(3)},
          agent(1, *ends.receiver),
          agent(2, ends.sender),
          ids.int_at(4) != 0};
}

}  // namespace

void RRefSection::write(rpc::ValueWriter writer, const AgentId& sender,
                        const std::optional<AgentId>& receiver) const {
  const Ends ends{sender, receiver ? &*receiver : nullptr};
  const std::size_t fields = std::size_t{target.has_value()} + std::size_t{result.has_value()} +
                             std::size_t{!site.empty()} + std::size_t{name.has_value()} +
                             (carried.empty() ? 0 : 3);
  rpc::RecordWriter record = writer.set_record(fields);
  std::size_t next = 0;
  const auto field = [&](std::string_view key) { return record.field(next++, key); };
  if (target) rref::write(field("target"), *target, ends);
  if (result) rref::write(field("result"), *result, ends);
  if (!site.empty()) field("site").set_text(site);
  if (name) field("name").set_text(*name);
  if (carried.empty()) return;
  rpc::ListWriter list = field("carried").set_list(carried.size());
  for (std::size_t i = 0; i < carried.size(); ++i) rref::write(list[i], carried[i], ends);
  rpc::Codec<std::vector<std::string>>::encode(field("owner_addresses"), owner_addresses);
  rpc::Codec<std::vector<std::uint64_t>>::encode(field("local"), local);
}

RRefSection RRefSection::read(const rpc::ValueReader& reader, const AgentId& sender,
                              const AgentId& receiver) {
  const Ends ends{sender, &receiver};
  RRefSection section;
  std::size_t guess = 0;
  const auto field = [&](std::string_view key, auto take) {
    rpc::ValueReader value;
    if (!reader.find_field(key, guess, value)) return;
    ++guess;
    try {
      take(value);
    } catch (const rpc::Error& error) {
      throw rpc::Error(error.kind(), "field '" + std::string(key) + "': " + error.what());
    }
  };
  using Value = rpc::ValueReader;
  field("target", [&](const Value& value) { section.target = read_handover(value, ends); });
  field("result", [&](const Value& value) { section.result = read_handover(value, ends); });
  field("site", [&](const Value& value) { section.site = value.get_text(); });
  field("name", [&](const Value& value) { section.name = std::string(value.get_text()); });
  field("carried", [&](const Value& value) {
    const std::size_t n = value.size();
    section.carried.reserve(n);  // at most the header's words
    for (std::size_t i = 0; i < n; ++i) section.carried.push_back(read_handover(value.at(i), ends));
  });
  field("owner_addresses", [&](const Value& value) {
    section.owner_addresses = rpc::Codec<std::vector<std::string>>::decode(value);
  });
  field("local",
        [&](const Value& value) { section.local = rpc::Codec<std::vector<std::uint64_t>>::decode(value); });
  if (section.local.size() != section.carried.size() ||
      section.owner_addresses.size() != section.carried.size())
    throw malformed(std::to_string(section.carried.size()) + " references have " +
                    std::to_string(section.owner_addresses.size()) + " texts of addresses and " +
                    std::to_string(section.local.size()) +
                    " transit numbers, expected one of each for each reference");
  return section;
}

}  // namespace weft::rref
