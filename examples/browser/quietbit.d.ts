/** Meanings of a refusal, by status. */
export const REFUSALS: Readonly<Record<number, string>>;

/** A release that is not made; `status` is a qb_status of quietbit_client.h. */
export class Refused extends Error {
  readonly status: number;
}

/** A mechanism that the owner of the device allows. */
export interface Mechanism {
  readonly entry: number;
  /** Of one release, in the table's units. */
  readonly cost: number;
  readonly dimension: number;
  /** Updates longer than this are clipped. */
  readonly radius: number;
  readonly payloadBytes: number;
}

export class Client {
  static load(module: BufferSource, table: ArrayBuffer): Promise<Client>;
  readonly budget: number;
  find(text: string): Mechanism | null;
  ledgerBegin(): string;
  spent(ledger: string): number;
  ledgerLine(mechanism: Mechanism, spent: number): string;
  draw(mechanism: Mechanism, update: Float32Array, key?: Uint8Array): Uint8Array;
}

export class Ledger {
  static open(name: string, client: Client): Promise<Ledger>;
  text(): Promise<string>;
  spent(): Promise<number>;
  release(mechanism: Mechanism, update: Float32Array): Promise<Uint8Array>;
}
