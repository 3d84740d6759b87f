package thulawa.peers;

import java.util.zip.CRC32;

/** How long the call for a record takes: half to one and a half of the mean, by its value alone. */
final class Calls {
    private static final int STEPS = 1000;

    private Calls() {}

    /** Gives the milliseconds; the benchmark computes the same for every system. */
    static double milliseconds(byte[] value, double mean) {
        CRC32 sum = new CRC32();
        sum.update(value);
        return mean * (0.5 + (double) (sum.getValue() % STEPS) / STEPS);
    }

    /** Waits as long as a call for this record takes. */
    static byte[] block(byte[] value, double mean) {
        try {
            long nanos = (long) (milliseconds(value, mean) * 1e6);
            Thread.sleep(nanos / 1_000_000, (int) (nanos % 1_000_000));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        return value;
    }
}
