// The fuzzer's function on inputs drawn at random: a short run of it with every test.
#include <gtest/gtest.h>

#include <random>
#include <vector>

// A fuzzer links this file as a separate source. This test includes it.
#include "tests/fuzz/tls_fuzz.cc"

namespace weft::test::tls_fuzz_test {
namespace {

TEST(TlsFuzz, AnHonestWire) {
  for (int setting = 0; setting < 9; ++setting) {
    const std::uint8_t input[] = {static_cast<std::uint8_t>(setting)};
    EXPECT_EQ(fuzz_tls_handshake(input, 1), 0);
  }
  // Everything passes, in small pieces.
  for (int setting = 0; setting < 9; ++setting) {
    std::vector<std::uint8_t> input{static_cast<std::uint8_t>(setting)};
    for (int i = 0; i < 1000; ++i) {
      input.push_back(static_cast<std::uint8_t>(0x20 | (i & 1)));
      input.push_back(static_cast<std::uint8_t>(i % 17));
      input.push_back(0);
    }
    EXPECT_EQ(fuzz_tls_handshake(input.data(), input.size()), 0);
  }
}

TEST(TlsFuzz, AnAttackerOnTheWire) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 1500; ++i) {
    std::vector<std::uint8_t> input{static_cast<std::uint8_t>(random())};
    const auto deeds = random() % 60, wrong_in = 1 + random() % 30;
    for (std::size_t deed = 0; deed < deeds; ++deed) {
      const bool wrong = random() % wrong_in == 0;
      const auto kind = wrong ? 8 + random() % 8 : random() % 8;
      input.push_back(static_cast<std::uint8_t>((random() & 0xe1) | kind << 1));
      for (int parameter = 0; parameter < 3; ++parameter)
        input.push_back(static_cast<std::uint8_t>(random()));
    }
    ASSERT_EQ(fuzz_tls_handshake(input.data(), input.size()), 0) << i;
  }
}

TEST(TlsFuzz, noise) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 1500; ++i) {
    std::vector<std::uint8_t> input(random() % 300);
    for (auto& byte : input) byte = static_cast<std::uint8_t>(random());
    ASSERT_EQ(fuzz_tls_handshake(input.data(), input.size()), 0) << i;
  }
}

// Changes one byte in each piece of the handshake, at many positions.
TEST(TlsFuzz, OneByteChanged) {
  const auto let_through = [](std::vector<std::uint8_t>& input, int direction, std::uint8_t bytes) {
    input.insert(input.end(), {static_cast<std::uint8_t>(0x20 | direction), bytes, 0});
  };
  for (const int setting : {0, 4}) {
    for (const int direction : {0, 1}) {
      for (int chunk = 0; chunk < 8; ++chunk) {
        for (int place = 0; place < 256; place += 9) {
          std::vector<std::uint8_t> input{static_cast<std::uint8_t>(setting)};
          for (int i = 0; i < chunk; ++i) {
            let_through(input, direction, 255);
            for (int j = 0; j < 4; ++j) let_through(input, 1 - direction, 255);
          }
          input.insert(input.end(), {static_cast<std::uint8_t>(8 << 1 | direction),
                                     static_cast<std::uint8_t>(place), 0x40});
          ASSERT_EQ(fuzz_tls_handshake(input.data(), input.size()), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::test::tls_fuzz_test
