// The frames that a session keeps until they are acknowledged.
#include <weft/rpc/endpoint/sent_frames.h>

#include <gtest/gtest.h>

namespace weft::rpc::sent_frames_test {
namespace {

SentFrames::UnacknowledgedFrame frame(FrameKind kind, std::uint64_t id) {
  return {.frame = OutgoingMessage::plain(FrameKind::cancel, id), .kind = kind, .call_id = id};
}

Prefix prefix_of(const OutboundFrame& frame) {
  return decode(std::span<const std::byte, Prefix::size>(frame.head.data(), Prefix::size), Limits{});
}
std::uint64_t id_of(const OutboundFrame& frame) { return prefix_of(frame).call_id; }

// Frames may be acknowledged that were not sent over the latest connection.
TEST(SentFramesTest, AnAcknowledgementSkipsUnsentFrames) {
  SentFrames frames;
  for (std::uint64_t id = 0; id < 4; ++id) frames.keep(frame(FrameKind::request, id));
  frames.rewind();
  frames.acknowledge(3);
  EXPECT_EQ(frames.unsent(), 3U);
  EXPECT_EQ(id_of(frames.next()), 3U);
  frames.acknowledge(2);
  EXPECT_EQ(frames.first(), 3U) << "an older number has no effect";
}

TEST(SentFramesTest, AWithdrawnRequestKeepsItsNumber) {
  SentFrames frames;
  auto request = frame(FrameKind::request, 7);
  request.frame.attachments.push_back(Buffer::allocate(1000));
  frames.keep(std::move(request));
  frames.keep(frame(FrameKind::request, 8));
  EXPECT_GT(frames.bytes(), 1000U);
  frames.withdraw(0);
  EXPECT_LT(frames.bytes(), 1000U);
  EXPECT_EQ(frames.withdrawn_from(0), std::vector<std::uint64_t>{7});
  EXPECT_TRUE(frames.withdrawn_from(1).empty());
  const OutboundFrame sent = frames.next();
  EXPECT_EQ(id_of(sent), 7U);
  EXPECT_TRUE(sent.attachments.empty());
  frames.acknowledge(1);
  frames.withdraw(0);  // too late
  EXPECT_EQ(id_of(frames.next()), 8U);
}

TEST(SentFramesTest, WhatFollowsTheSendingRunsOnce) {
  SentFrames frames;
  int sent = 0;
  auto reply = frame(FrameKind::reply, 1);
  reply.frame.sent = [&] { ++sent; };
  int checks = 0;
  auto request = frame(FrameKind::request, 2);
  request.check = std::make_shared<UniqueFunction<void()>>([&] { ++checks; });
  frames.keep(std::move(reply));
  frames.keep(std::move(request));
  for (int i = 0; i < 2; ++i) {
    frames.rewind();
    while (frames.has_unsent())
      if (OutboundFrame next = frames.next(); next.sent) next.sent();
  }
  EXPECT_EQ(sent, 1);
  EXPECT_EQ(checks, 2) << "a borrowed argument must not change before the last time";
}

}  // namespace
}  // namespace weft::rpc::sent_frames_test
