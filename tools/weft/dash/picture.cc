#include "tools/weft/dash/picture.h"

#include <weft/parallel/collectives/flight/flight_group.h>

#include <algorithm>
#include <cmath>

#include "tools/weft/wait_graph.h"

namespace weft::tool {
namespace {

constexpr std::size_t max_points = 300, max_series = 200, max_members = 100, max_spans = 2000,
                      max_calls = 200;
constexpr double seconds_of_spans = 10;

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

std::string state_of(const rpc::MemberRecord& record) {
  switch (record.state) {
    case rpc::MemberState::claimed:
      return "joining";
    case rpc::MemberState::left:
      return "left";
    case rpc::MemberState::lost:
      return "lost";
    default:
      return "alive";
  }
}

PrintedJson references_json(const AgentSample& agent) {
  const rref::ReferenceListing& listing = *agent.references;
  PrintedJson list = PrintedJson::array();
  for (const rref::ObjectListing& object : listing.objects)
    list.push_back({{"id", object.id},
                    {"type", object.type},
                    {"state", object.state},
                    {"bytes", object.bytes ? PrintedJson(*object.bytes) : PrintedJson()},
                    {"users", object.users},
                    {"age", object.age}});
  return {{"agent", agent.stats.name},        {"objects", listing.stats.objects},
          {"forks", listing.stats.forks},     {"references", listing.stats.references},
          {"pending", listing.stats.pending}, {"more", listing.more},
          {"list", std::move(list)}};
}

PrintedJson rank_json(const collectives::FlightDump& dump) {
  PrintedJson operations = PrintedJson::array();
  for (const collectives::FlightEntry& entry : dump.records.entries)
    operations.push_back({{"text", entry.what()},
                          {"site", entry.site},
                          {"state", std::string(name_of(entry.state))},
                          {"age", seconds(dump.records.taken - entry.begun)}});
  const auto rank = static_cast<std::size_t>(std::max(dump.rank, 0));
  return {{"rank", dump.rank},
          {"member", rank < dump.members.size() ? dump.members[rank] : ""},
          {"begun", dump.records.begun},
          {"operations", std::move(operations)}};
}

PrintedJson groups_json(const JobSample& sample) {
  std::vector<collectives::FlightDump> dumps;
  for (const AgentSample& agent : sample.agents)
    dumps.insert(dumps.end(), agent.groups.begin(), agent.groups.end());
  std::vector<std::string> notes;
  PrintedJson groups = PrintedJson::array();
  for (const collectives::FlightGroup& group : collectives::flight_groups(dumps, notes)) {
    PrintedJson ranks = PrintedJson::array();
    for (const collectives::FlightDump* dump : group.dumps)
      if (dump != nullptr) ranks.push_back(rank_json(*dump));
    groups.push_back({{"name", group.label}, {"size", group.size()}, {"ranks", std::move(ranks)}});
  }
  return groups;
}

// Appends a call to the list, followed by the calls for which it waits, one level deeper.
void append(PrintedJson& list, const WaitGraph& graph, std::size_t call, std::size_t depth,
            std::vector<bool>& listed, const std::vector<bool>& in_cycle) {
  if (listed[call] || list.size() >= max_calls) return;
  listed[call] = true;
  list.push_back({{"text", graph.calls[call].name.caller + "#" + std::to_string(graph.calls[call].name.id) +
                               " " + graph.calls[call].text},
                  {"age", graph.calls[call].age},
                  {"depth", depth},
                  {"cycle", static_cast<bool>(in_cycle[call])}});
  for (const std::size_t next : graph.calls[call].waits_for)
    append(list, graph, next, depth + 1, listed, in_cycle);
}

PrintedJson calls_json(const JobSample& sample) {
  std::vector<rpc::CallsInFlight> agents;
  for (const AgentSample& agent : sample.agents)
    if (agent.silent.empty()) agents.push_back(agent.calls);
  const WaitGraph graph = wait_graph(agents, 0);
  std::vector<bool> listed(graph.calls.size()), in_cycle(graph.calls.size());
  for (const auto& cycle : graph.cycles)
    for (const std::size_t call : cycle) in_cycle[call] = true;
  PrintedJson list = PrintedJson::array();
  for (const bool awaited : {false, true})  // calls that only calls in cycles wait for are last
    for (std::size_t i = 0; i < graph.calls.size(); ++i)
      if (graph.calls[i].awaited == awaited) append(list, graph, i, 0, listed, in_cycle);
  return list;
}

}  // namespace

void Series::add(double time, double value) {
  if (!std::isfinite(value)) return;
  if (skipped_++ % stride_ != 0) return;
  points_.emplace_back(time, value);
  if (points_.size() < max_points) return;
  for (std::size_t i = 0; 2 * i < points_.size(); ++i) points_[i] = points_[2 * i];
  points_.resize((points_.size() + 1) / 2);
  stride_ *= 2;
}

PrintedJson Series::json() const {
  PrintedJson points = PrintedJson::array();
  for (const auto& [time, value] : points_) points.push_back({time, value});
  return points;
}

void Picture::add(const JobSample& sample) {
  if (samples_++ == 0) first_ = sample.time;
  add_members(sample);
  rates_.clear();
  for (const AgentSample& agent : sample.agents) {
    if (!agent.silent.empty()) continue;
    const rpc::AgentStats& now = agent.stats;
    last_.time = sample.time;  // the time of the points
    add_rates(now);
    for (const auto& [name, value] : now.gauges) add_point(gauges_, name, now.name, value);
    stats_[{now.name, now.incarnation}] = now;
  }
  for (auto& [key, lane] : spans_) {
    const std::int64_t ahead = lane.spans.clock.ahead;
    std::erase_if(lane.spans.spans, [&](const rpc::Span& span) {
      return seconds(sample.time - (span.end - ahead)) > seconds_of_spans;
    });
  }
  for (const AgentSample& agent : sample.agents)
    if (agent.spans) add_spans(agent, sample.time);
  std::erase_if(spans_, [](const auto& entry) { return entry.second.spans.spans.empty(); });
  last_ = sample;
}

void Picture::add_members(const JobSample& sample) {
  strangers_.clear();
  if (sample.members) {
    for (const rpc::MemberRecord& record : *sample.members) {
      Row& row = members_[{record.name, record.incarnation}];
      row.rank = record.rank;
      if (row.address.empty() && !record.addresses.empty()) row.address = record.addresses.front();
      row.state = state_of(record);
      row.recorded = true;
      row.seen = samples_;
    }
  }
  for (const AgentSample& agent : sample.agents) {
    if (agent.silent.empty()) {
      Row& row = members_[{agent.stats.name, agent.stats.incarnation}];
      row.address = agent.address;
      if (!row.recorded || row.seen != samples_) row.state = "alive";
      row.note.clear();
      row.uptime = agent.stats.uptime;
      row.seen = samples_;
      continue;
    }
    bool known = false;
    for (auto& [key, row] : members_) {
      if (row.address != agent.address || (row.state != "alive" && row.state != "no answer")) continue;
      row.state = "no answer";
      row.note = agent.silent;
      row.seen = samples_;
      known = true;
    }
    if (!known) {
      Row& row = strangers_[agent.address];
      row.address = agent.address;
      row.state = "no answer";
      row.note = agent.silent;
    }
  }
  for (auto& [key, row] : members_)  // its record was removed, or another incarnation answers at its address
    if (row.seen != samples_ && row.state != "left") row.state = "lost";
  while (members_.size() > max_members) {
    const auto oldest = std::min_element(members_.begin(), members_.end(), [](const auto& a, const auto& b) {
      return a.second.seen < b.second.seen;
    });
    stats_.erase(oldest->first);
    members_.erase(oldest);
  }
}

void Picture::add_rates(const rpc::AgentStats& now) {
  const auto before = stats_.find({now.name, now.incarnation});
  if (before == stats_.end()) return;
  const rpc::AgentStats& then = before->second;
  const double passed = now.uptime - then.uptime;
  if (!(passed > 0)) return;
  const auto rate = [&](std::uint64_t earlier, std::uint64_t later) {
    return later > earlier ? static_cast<double>(later - earlier) / passed : 0;
  };
  const double served = rate(then.calls_served, now.calls_served),
               made = rate(then.calls_made, now.calls_made);
  const double received = rate(then.bytes_received, now.bytes_received),
               sent = rate(then.bytes_sent, now.bytes_sent);
  rates_[now.name] = {{"agent", now.name},     {"served", served}, {"made", made},
                      {"received", received},  {"sent", sent},     {"serving", now.serving},
                      {"waiting", now.waiting}};
  add_point(charts_, "calls served per second", now.name, served);
  add_point(charts_, "calls made per second", now.name, made);
  add_point(charts_, "bytes sent per second", now.name, sent);
}

void Picture::add_spans(const AgentSample& agent, std::int64_t time) {
  Lane& lane = spans_[{agent.stats.name, agent.stats.incarnation}];
  lane.spans.agent = agent.stats.name;
  lane.spans.clock = agent.spans->clock;
  lane.dropped += agent.spans->dropped;
  auto& spans = lane.spans.spans;
  for (const rpc::Span& span : agent.spans->spans)
    if (seconds(time - (span.end - lane.spans.clock.ahead)) <= seconds_of_spans) spans.push_back(span);
  if (spans.size() <= max_spans) return;
  lane.dropped += spans.size() - max_spans;
  spans.erase(spans.begin(), spans.end() - max_spans);
}

void Picture::add_point(Charts& charts, const std::string& name, const std::string& agent, double value) {
  auto& chart = charts[name];
  if (!chart.contains(agent)) {  // a program may generate any number of names
    std::size_t series = 0;
    for (const auto& [other, lines] : charts) series += lines.size();
    if (series >= max_series) {
      if (chart.empty()) charts.erase(name);
      return;
    }
  }
  chart[agent].add(seconds(last_.time - first_), value);
}

PrintedJson Picture::json() const {
  PrintedJson members = PrintedJson::array();
  const auto add_row = [&](const std::string& name, std::uint64_t incarnation, const Row& row) {
    members.push_back(
        {{"name", name},
         {"rank", row.rank ? PrintedJson(*row.rank) : PrintedJson()},
         {"address", row.address},
         {"incarnation", incarnation == 0 ? "" : std::to_string(incarnation)},  // text: exceeds a double
         {"uptime", row.uptime >= 0 ? PrintedJson(row.uptime) : PrintedJson()},
         {"state", row.state},
         {"note", row.note}});
  };
  for (const auto& [key, row] : members_) add_row(key.first, key.second, row);
  for (const auto& [address, row] : strangers_) add_row("", 0, row);
  std::stable_sort(members.begin(), members.end(), [](const PrintedJson& a, const PrintedJson& b) {
    const auto place = [](const PrintedJson& member) {
      return member["rank"].is_null() ? std::uint64_t(-1) : member["rank"].get<std::uint64_t>();
    };
    return place(a) < place(b);
  });

  const auto charts_json = [](const Charts& charts) {
    PrintedJson json = PrintedJson::array();
    for (const auto& [name, chart] : charts) {
      PrintedJson lines = PrintedJson::array();
      for (const auto& [agent, series] : chart)
        lines.push_back({{"agent", agent}, {"points", series.json()}});
      json.push_back({{"name", name}, {"lines", std::move(lines)}});
    }
    return json;
  };
  PrintedJson rates = PrintedJson::array();
  for (const auto& [agent, rate] : rates_) rates.push_back(rate);
  PrintedJson references = PrintedJson::array();
  for (const AgentSample& agent : last_.agents)
    if (agent.references) references.push_back(references_json(agent));

  PrintedJson timeline = PrintedJson::array();
  for (const auto& [key, lane] : spans_) {
    const auto lanes = rpc::lanes_of(lane.spans.spans);
    const std::int64_t ahead = lane.spans.clock.ahead;
    PrintedJson spans = PrintedJson::array();
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      const rpc::Span& span = lane.spans.spans[i];
      const auto ago = [&](std::int64_t at) { return seconds(at - ahead - last_.time); };
      spans.push_back({lanes[i], ago(span.begin), ago(span.end), span.name,
                       span.work     ? "work"
                       : span.served ? "served"
                                     : "made",
                       span.error});
    }
    const std::size_t count = lanes.empty() ? 0 : *std::max_element(lanes.begin(), lanes.end()) + 1;
    timeline.push_back(
        {{"agent", key.first}, {"dropped", lane.dropped}, {"lanes", count}, {"spans", std::move(spans)}});
  }

  return {{"time", seconds(last_.time - first_)},
          {"members", std::move(members)},
          {"rates", std::move(rates)},
          {"gauges", charts_json(gauges_)},
          {"charts", charts_json(charts_)},
          {"calls", calls_json(last_)},
          {"references", std::move(references)},
          {"groups", groups_json(last_)},
          {"timeline", std::move(timeline)}};
}

}  // namespace weft::tool
