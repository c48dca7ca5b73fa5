#include "llama/tokenizer.h"

#include <fmt/format.h>
#include <unicode/utext.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "llama/config.h"

using nlohmann::json;

namespace {

// How GPT-2 splits a text into words.
constexpr std::string_view gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what); }

void expect_icu(UErrorCode status, const std::string& what) {
  if (U_FAILURE(status)) refuse(fmt::format("{}: {}", what, u_errorName(status)));
}

// The characters of tokenizer.json that stand for bytes: printable ones for themselves, and the characters
// from U+0100 on for the other bytes, in their order. -1: a character that stands for no byte.
constexpr std::array<int, 324> byte_alphabet() {
  std::array<int, 324> bytes{};
  bytes.fill(-1);
  std::size_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[printable ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return bytes;
}

// The bytes for which the characters of a token stand. nullopt: a character stands for no byte.
std::optional<std::string> bytes_of(const std::string& token) {
  constexpr auto alphabet = byte_alphabet();
  std::string bytes;
  for (std::size_t i = 0; i < token.size(); ++i) {
    std::size_t character = static_cast<unsigned char>(token[i]);
    if (character >= 0xC0 && i + 1 < token.size())  // the first of the two bytes of a character below U+0800
      character = (character & 0x3F) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3F);
    if (character >= alphabet.size() || alphabet[character] < 0) return {};
    bytes += static_cast<char>(alphabet[character]);
  }
  return bytes;
}

// The words of a text. What is between two matches is a word, too.
std::vector<std::string_view> split(std::string_view text, const icu::RegexPattern& pattern) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UText, decltype(&utext_close)> input(
      utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status), utext_close);
  const std::unique_ptr<icu::RegexMatcher> matcher(pattern.matcher(status));
  expect_icu(status, "cannot split a text");
  matcher->reset(input.get());
  std::vector<std::string_view> words;
  std::size_t end = 0;
  const auto add = [&](std::size_t begin, std::size_t to) {
    if (to > begin) words.push_back(text.substr(begin, to - begin));
  };
  while (matcher->find(status)) {
    const auto begin = static_cast<std::size_t>(matcher->start64(status));
    add(end, begin);
    end = static_cast<std::size_t>(matcher->end64(status));
    add(begin, end);
  }
  expect_icu(status, "cannot split a text");
  add(end, text.size());
  return words;
}

}  // namespace

// Fills a Tokenizer from the parts of tokenizer.json.
class Tokenizer::Reader {
 public:
  explicit Reader(Tokenizer& to) : to_(to) {}

  void read(const json& file) {
    if (is_set(file, "normalizer")) refuse_part("normalizer", file["normalizer"], "none");
    if (is_set(file, "pre_tokenizer")) read_splits(file["pre_tokenizer"]);
    if (!byte_level_) refuse("the pre_tokenizer has no ByteLevel: expected byte-level BPE, as of Llama 3");
    read_added(file.value("added_tokens", json::array()));
    read_model(file.at("model"));
    if (is_set(file, "post_processor")) read_template(file["post_processor"]);
  }

 private:
  static bool is_set(const json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && !found->is_null() && *found != false && *found != "";
  }
  [[noreturn]] static void refuse_part(const std::string& name, const json& part,
                                       const std::string& expected) {
    refuse(fmt::format("{} is {}: expected {}", name, part.dump().substr(0, 200), expected));
  }

  void read_splits(const json& part) {
    const std::string type = part.at("type");
    if (type == "Sequence") {
      for (const json& each : part.at("pretokenizers")) read_splits(each);
    } else if (type == "ByteLevel" && !part.value("add_prefix_space", true)) {
      if (part.value("use_regex", true)) add_split(std::string(gpt2_words));
      byte_level_ = true;
    } else if (type == "Split" && part.at("behavior") == "Isolated" && part.at("pattern").contains("Regex")) {
      add_split(part["pattern"]["Regex"]);
    } else if (type == "Digits") {
      add_split(part.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    } else {
      refuse_part("pre_tokenizer", part, "ByteLevel without a prefix, Split by an isolated Regex, or Digits");
    }
  }

  void add_split(const std::string& pattern) {
    UErrorCode status = U_ZERO_ERROR;
    to_.splits_.emplace_back(icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(pattern), 0, status));
    expect_icu(status, "the pattern " + pattern);
  }

  void read_added(const json& tokens) {
    for (const json& each : tokens) {
      for (const char* option : {"single_word", "lstrip", "rstrip"})
        if (is_set(each, option)) refuse_part("an added token", each, std::string("no ") + option);
      const std::int64_t token = each.at("id");
      const std::string text = each.at("content");
      to_.added_.emplace(text, token);
      to_.added_begin_ += text.substr(0, 1);
      to_.bytes_[token] = text;
      if (each.value("special", false)) to_.special_.insert(token);
    }
  }

  void read_model(const json& model) {
    if (model.value("type", "BPE") != "BPE") refuse_part("the model's type", model["type"], "BPE");
    for (const char* option :
         {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk"})
      if (is_set(model, option)) refuse_part(std::string("the model's ") + option, model[option], "none");
    to_.prefers_whole_words_ = is_set(model, "ignore_merges");
    for (const auto& [text, token] : model.at("vocab").items()) {
      if (to_.added_.contains(text)) continue;
      const auto bytes = bytes_of(text);
      if (!bytes) refuse(fmt::format("the token '{}' has a character that stands for no byte", text));
      to_.ids_.emplace(*bytes, token);
      to_.bytes_.emplace(token, *bytes);
    }
    for (std::size_t byte = 0; byte < 256; ++byte)
      to_.byte_tokens_[byte] = token_of(std::string(1, static_cast<char>(byte)));
    std::size_t rank = 0;
    for (const json& merge : model.at("merges")) {
      std::string left, right;
      if (merge.is_array()) {
        left = merge.at(0);
        right = merge.at(1);
      } else {  // "left right"
        const std::string both = merge;
        left = both.substr(0, both.find(' '));
        right = both.substr(left.size() + 1);
      }
      left = bytes_of(left).value_or(left);
      right = bytes_of(right).value_or(right);
      to_.merges_.emplace(std::pair{token_of(left), token_of(right)}, Merge{rank++, token_of(left + right)});
    }
  }

  std::int64_t token_of(const std::string& bytes) const {
    const auto found = to_.ids_.find(bytes);
    if (found == to_.ids_.end()) refuse(fmt::format("the vocabulary has no token for the bytes {:?}", bytes));
    return found->second;
  }

  void read_template(const json& part) {
    const std::string type = part.at("type");
    if (type == "Sequence") {
      for (const json& each : part.at("processors")) read_template(each);
    } else if (type == "TemplateProcessing") {
      bool after = false;
      for (const json& each : part.at("single")) {
        if (!each.contains("SpecialToken")) {
          after = true;
          continue;
        }
        const std::string name = each["SpecialToken"].at("id");
        const Tokens tokens = part.at("special_tokens").at(name).at("ids");
        Tokens& to = after ? to_.last_ : to_.first_;
        to.insert(to.end(), tokens.begin(), tokens.end());
      }
    } else if (type != "ByteLevel") {  // which changes only the positions of tokens
      refuse_part("post_processor", part, "TemplateProcessing or ByteLevel");
    }
  }

  Tokenizer& to_;
  bool byte_level_ = false;
};

Tokenizer::Tokenizer(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  try {
    Reader(*this).read(json::parse(read_file(path)));
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", path.string(), error.what()));
  }
}

Tokenizer::Tokens Tokenizer::encode(std::string_view text) const {
  Tokens tokens = first_;
  std::size_t begin = 0;
  for (std::size_t i = 0; (i = text.find_first_of(added_begin_, i)) != std::string_view::npos;) {
    const auto found = std::ranges::find_if(
        added_, [&](const auto& each) { return text.substr(i).starts_with(each.first); });
    if (found == added_.end()) {
      ++i;
      continue;
    }
    encode_plain(text.substr(begin, i - begin), tokens);
    tokens.push_back(found->second);
    begin = i += found->first.size();
  }
  encode_plain(text.substr(begin), tokens);
  tokens.insert(tokens.end(), last_.begin(), last_.end());
  return tokens;
}

void Tokenizer::encode_plain(std::string_view text, Tokens& tokens) const {
  std::vector<std::string_view> words{text};
  for (const auto& pattern : splits_) {
    std::vector<std::string_view> parts;
    for (const std::string_view word : words)
      for (const std::string_view part : split(word, *pattern)) parts.push_back(part);
    words = std::move(parts);
  }
  std::unordered_map<std::string, Tokens> encoded;  // words occur often
  for (const std::string_view word : words) {
    auto [found, is_new] = encoded.try_emplace(std::string(word));
    if (is_new) found->second = encode_word(found->first);
    tokens.insert(tokens.end(), found->second.begin(), found->second.end());
  }
}

Tokenizer::Tokens Tokenizer::encode_word(const std::string& word) const {
  if (prefers_whole_words_)
    if (const auto whole = ids_.find(word); whole != ids_.end()) return {whole->second};
  Tokens tokens;
  for (const char byte : word) tokens.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
  while (true) {
    Merge best{std::numeric_limits<std::size_t>::max(), 0};
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
      if (const auto merge = merges_.find({tokens[i], tokens[i + 1]});
          merge != merges_.end() && merge->second.rank < best.rank) {
        best = merge->second;
        place = i;
      }
    if (best.rank == std::numeric_limits<std::size_t>::max()) return tokens;
    tokens[place] = best.token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

std::string Tokenizer::decode(const Tokens& tokens) const {
  std::string text;
  for (const std::int64_t token : tokens)
    if (const auto bytes = bytes_.find(token); bytes != bytes_.end() && !special_.contains(token))
      text += bytes->second;
  return text;
}
