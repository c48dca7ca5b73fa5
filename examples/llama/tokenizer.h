// Tokenizer: byte-level BPE (Radford et al., 2019), as tokenizer.json of a model describes it.
//
// A text is split into words by regular expressions, and each word into tokens. At first a word is its bytes.
// Then the pair of tokens that is first in the list of merges becomes one token, until no pair is in the
// list. Texts of special tokens, such as <|end_of_text|>, are these tokens. ICU's version of Unicode
// determines which characters are letters and numbers. Thread-safe.
#pragma once

#include <unicode/regex.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

class Tokenizer {
 public:
  // Reads tokenizer.json of the folder. Throws std::runtime_error if it is malformed, or if it describes
  // another kind of tokenizer.
  explicit Tokenizer(const std::filesystem::path& folder);

  // text: UTF-8. The result begins and ends with the special tokens that the model expects around a text.
  std::vector<std::int64_t> encode(std::string_view text) const;
  // Bytes, which are UTF-8 if the tokens end where a character ends. Special tokens have no text.
  std::string decode(const std::vector<std::int64_t>& tokens) const;

 private:
  class Reader;
  struct Merge {
    std::size_t rank;  // in the list of merges
    std::int64_t token;
  };
  using Tokens = std::vector<std::int64_t>;

  void encode_plain(std::string_view text, Tokens& tokens) const;
  Tokens encode_word(const std::string& word) const;

  std::unordered_map<std::string, std::int64_t> ids_;    // of the bytes of a token
  std::unordered_map<std::int64_t, std::string> bytes_;  // of a token
  std::map<std::pair<std::int64_t, std::int64_t>, Merge> merges_;
  std::array<std::int64_t, 256> byte_tokens_{};
  bool prefers_whole_words_ = false;                        // a word that is a token is not split
  std::vector<std::unique_ptr<icu::RegexPattern>> splits_;  // each splits the results of the previous one
  // Tokens that are found in a text before it is split; a text is before its beginnings.
  std::map<std::string, std::int64_t, std::greater<>> added_;
  std::string added_begin_;  // the first bytes of these texts
  std::unordered_set<std::int64_t> special_;
  Tokens first_, last_;  // around a text
};
